package dev.edgelm.text

import dev.edgelm.bundle.TextFormat
import java.security.SecureRandom

/**
 * Control tokens that somebody typed are text: a mark in each keeps the tokenizer from finding it. [special] and
 * [others], which models write in answers too, are their texts.
 */
internal class Controls(special: Collection<String>, others: Collection<String>) {
    private val inAnswers = pattern(special)
    private val everywhere = pattern(special + others)

    /** A text with marks in its control tokens; [answer]: whether a model wrote it. */
    fun hide(text: String, answer: Boolean = false): String =
        (if (answer) inAnswers else everywhere)?.replace(text) { marked(it.value) } ?: text

    /** A mark after the first character, which two chars may be. */
    private fun marked(control: String): String {
        val first = control.offsetByCodePoints(0, 1)
        return control.substring(0, first) + MARK + control.substring(first)
    }

    companion object {
        /** What no text has, because nobody can guess it, and the tokenizer takes out again: noncharacters of Unicode. */
        val MARK: String = SecureRandom().let { random -> String(CharArray(MARK_SIZE) { '\uFDD0' + random.nextInt(NONCHARACTERS) }) }
        private const val MARK_SIZE = 16
        private const val NONCHARACTERS = 32 // from U+FDD0 on

        private val BLANK = Regex("<extra_id_\\d+>|<mask>|\\[MASK]") // for an encoder-decoder to fill in

        /** Of a decoder: special tokens, and others that the chat template writes. */
        fun of(tokenizer: Tokenizer, template: String): Controls {
            val (special, others) = tokenizer.addedTexts.partition { tokenizer.isSpecial(it) }
            return Controls(special, others.filter { it.isNotBlank() && it in template })
        }

        /** Of a model from text to text, where people write blanks and target languages on purpose. */
        fun of(tokenizer: Tokenizer, format: TextFormat): Controls {
            val codes = if (format.targetInSource) format.languages.keys else emptySet()
            val languages = codes.flatMap { code -> LANGUAGE_MARKS.map { (start, end) -> start + code + end } }
            val special = tokenizer.addedTexts.filter { tokenizer.isSpecial(it) && it !in languages && !BLANK.matches(it) }
            return Controls(special, emptyList())
        }

        /** The longest of those that begin at a place; null where there is none. */
        private fun pattern(texts: Collection<String>): Regex? =
            if (texts.isEmpty()) null else Regex(texts.sortedByDescending { it.length }.joinToString("|", transform = Regex::escape))
    }
}
