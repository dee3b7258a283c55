package dev.edgelm.app.model

import java.util.Locale
import java.util.MissingResourceException

/** A language by its code in a bundle, such as `de`, `de_DE` or `deu_Latn`, and its name on this phone. */
data class Language(val code: String, private val name: String) {
    override fun toString() = name

    companion object {
        private val twoLetters by lazy { Locale.getISOLanguages().associateBy { threeLetters(Locale(it)) } }

        /** By name. The country or script is named where the language alone would not do. */
        fun all(codes: List<String>): List<Language> {
            val locales = codes.associateWith(::locale)
            val count = locales.values.groupingBy { it.displayLanguage }.eachCount()
            return locales.map { (code, locale) ->
                val name = if (count[locale.displayLanguage] == 1) locale.displayLanguage else locale.displayName
                Language(code, name.ifEmpty { code })
            }.sortedBy { it.name }
        }

        /** The first of [wanted] that is among [codes]; else the phone's own language, or else the first; null: none is. */
        fun choose(codes: List<String>, vararg wanted: String?): String? =
            wanted.firstOrNull { it in codes }
                ?: codes.firstOrNull { locale(it).language == Locale.getDefault().language }
                ?: codes.firstOrNull()

        /** With two letters where there are two: not every phone knows `deu`. */
        private fun locale(code: String): Locale {
            val given = Locale.forLanguageTag(code.replace('_', '-'))
            val short = twoLetters[given.language] ?: return given
            return Locale.Builder().setLocale(given).setLanguage(short).build()
        }

        private fun threeLetters(locale: Locale): String = try {
            locale.isO3Language
        } catch (_: MissingResourceException) {
            locale.language
        }
    }
}
