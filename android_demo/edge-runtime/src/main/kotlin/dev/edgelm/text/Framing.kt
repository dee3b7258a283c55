package dev.edgelm.text

import dev.edgelm.InputException
import dev.edgelm.bundle.TextFormat

/**
 * The format of a model from text to text at work: an input's tokens with what stands around them, and what the decoder
 * begins with. [forced]: the token that every output begins with, where there is one.
 */
internal class Framing(private val format: TextFormat, private val tokenizer: Tokenizer, private val forced: Int?) {
    private val controls by lazy { Controls.of(tokenizer, format) }

    /** What the decoder begins with, for an output in this language. */
    fun start(target: String?): IntArray {
        val prompt = format.decoderStart.toMutableList()
        if (format.targetAtStart || target != null && !format.targetInSource) prompt += target(target)
        if (forced != null) prompt += forced
        return prompt.toIntArray()
    }

    /** The tokens of a text as the encoder takes them; InputException for an empty text or an unknown language. */
    fun tokens(text: String, source: String?, target: String?): IntArray {
        if (text.isBlank()) throw InputException("The text is empty; give the model something to work on.")
        val bare = tokenizer.encode(controls.hide(text))
        var framed = format.prefix.toIntArray() + bare + format.suffix.toIntArray()
        if (format.targetInSource) framed = toTarget(bare, framed, target)
        if (format.sourceAt.isEmpty() && source == null) return framed
        val language = source(source)
        return if (format.sourceAt == "prefix") intArrayOf(language) + framed else framed + language
    }

    private fun target(code: String?) = findLanguage(format.languages, code, format.target, "target")

    private fun source(code: String?): Int {
        if (format.languages.isNotEmpty() && format.sourceAt.isEmpty()) {
            throw InputException("This model finds out the source language itself; omit it.")
        }
        return findLanguage(format.languages, code, format.source, "source")
    }

    /** The input with the target's token in front, which the text may have already. */
    private fun toTarget(bare: IntArray, framed: IntArray, code: String?): IntArray {
        val own = bare.firstOrNull()?.takeIf { it in format.languages.values }
        if (code == null && (own != null || format.languages.size == 1)) return framed
        val language = target(code)
        if (own != null && own != language) {
            throw InputException("The text asks for ${tokenizer.token(own)}, and the target language is '$code'.")
        }
        return if (own != null) framed else intArrayOf(language) + framed
    }
}
