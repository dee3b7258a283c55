package dev.edgelm.text

import dev.edgelm.InputException

/** What stands around the code of a target language before a text: Marian's way, and MADLAD's. */
internal val LANGUAGE_MARKS = listOf(">>" to "<<", "<2" to ">")
private const val SHOWN = 8 // named in the error about an unknown language
private val COMMON = listOf("en", "de", "fr", "es", "zh", "ar", "hi", "pt")

/**
 * The token of a language among [languages], by their codes; [code] may be cut short where that is unambiguous: `de` for
 * `de_DE`. [default]: the code where none is given. [which]: "source" or "target".
 */
internal fun findLanguage(languages: Map<String, Int>, code: String?, default: String?, which: String): Int {
    if (languages.isEmpty()) {
        throw InputException("This model has no choice of languages, so that it takes no $which language.")
    }
    val wanted = code ?: default
    val known = "it has ${languages.size}, such as ${some(languages.keys, wanted.orEmpty()).joinToString(", ")}"
    if (wanted == null) throw InputException("This model needs a $which language; $known.")
    val folded = LANGUAGE_MARKS.fold(wanted.lowercase().replace('-', '_')) { code, (start, end) -> code.removePrefix(start).removeSuffix(end) }
    val matches = languages.keys.filter { it.lowercase() == folded }
        .ifEmpty { languages.keys.filter { it.lowercase().startsWith("${folded}_") } }
    if (matches.size == 1) return languages.getValue(matches[0])
    if (matches.isNotEmpty()) {
        throw InputException("The $which language '$wanted' may be ${matches.sorted().joinToString(" or ")}; say which.")
    }
    throw InputException("This model has no $which language '$wanted'; $known.")
}

/** A few of the languages: those that begin alike, or else common ones. */
private fun some(languages: Set<String>, wanted: String): List<String> {
    val codes = languages.sorted()
    val alike = codes.filter { wanted.length > 1 && it.startsWith(wanted.take(2), ignoreCase = true) }
    return (alike + codes.filter { it.take(2) in COMMON } + codes).distinct().take(SHOWN)
}
