package dev.edgelm.app.model

import java.util.Locale
import java.util.MissingResourceException

/** A language by its code in a bundle, such as `de`, `de_DE` or `deu_Latn`. */
data class Language(val code: String) {
    private val locale = Locale.forLanguageTag(code.replace('_', '-'))

    /** Its name on this phone; the code where the phone knows none. */
    override fun toString(): String = locale.displayName.ifEmpty { code }

    companion object {
        /** By name. */
        fun all(codes: List<String>): List<Language> = codes.map(::Language).sortedBy { it.toString() }

        /** The first of [wanted] that is among [codes]; else the phone's own language, or else the first; null: none is. */
        fun choose(codes: List<String>, vararg wanted: String?): String? =
            wanted.firstOrNull { it in codes }
                ?: codes.firstOrNull { threeLetters(Language(it).locale) == threeLetters(Locale.getDefault()) }
                ?: codes.firstOrNull()

        /** `de` and `deu` are one language. */
        private fun threeLetters(locale: Locale): String = try {
            locale.isO3Language
        } catch (_: MissingResourceException) {
            locale.language
        }
    }
}
