package dev.edgelm.text

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/** A token that the vocabulary was given by hand, as the file has it. */
@Serializable
internal data class AddedToken(
    val content: String,
    @SerialName("single_word") val singleWord: Boolean,
    val lstrip: Boolean,
    val rstrip: Boolean,
    val normalized: Boolean,
    val special: Boolean,
)

/** The added tokens with their ids, and how a text is split at them. */
internal class AddedTokens(tokens: List<AddedToken>, private val model: Model, private val normalizer: Normalizer?) {
    private val ids = HashMap<String, Int>()
    private val tokens = HashMap<Int, AddedToken>()
    private val normalizedTexts = HashMap<Int, String>()
    private val specialTexts: Set<String>
    private val literal = TokenTrie()
    private val normalized = TokenTrie()

    val special: Set<Int>

    /** Of the vocabulary with these tokens. */
    val size: Int

    init {
        var next = model.size
        for (token in tokens) {
            if (token.content.isEmpty()) continue
            // The library finds ids again, and does not read those of the file.
            val id = ids[token.content] ?: model.pieces.id(token.content).let { if (it >= 0) it else next++ }
            ids[token.content] = id
            this.tokens[id] = token
        }
        specialTexts = tokens.filter { it.special }.map { it.content }.toHashSet()
        special = this.tokens.filterValues { it.special }.keys
        size = model.size + ids.keys.count { model.pieces.id(it) < 0 }
        for ((id, token) in this.tokens) {
            val text = if (token.normalized) normalize(token.content) else token.content
            if (text != token.content) normalizedTexts[id] = text
            (if (token.normalized) normalized else literal).put(text, id)
        }
    }

    private fun normalize(text: String) = normalizer?.normalize(Span(text, 0))?.text ?: text

    /** The token of an id as decoders read it; null where no added token has it. */
    fun text(id: Int): String? = normalizedTexts[id] ?: tokens[id]?.content

    /** All of them. */
    val texts: List<String> get() = tokens.values.map { it.content }

    fun isSpecial(text: String): Boolean = text in specialTexts

    /** The parts of a text: tokens that are looked for as they are, and normalized texts with the others. */
    fun split(text: String): List<Span> {
        val words = Words()
        val whole = Span(text, if (text.isEmpty()) 0 else Character.charCount(text.codePointAt(0)))
        val parts = Words().also { cut(whole, literal, it) }
        for (part in parts.spans) {
            if (part.token >= 0) words.add(part) else cut(normalizer?.normalize(part) ?: part, normalized, words)
        }
        return words.spans
    }

    private fun cut(span: Span, trie: TokenTrie, words: Words) {
        val text = span.text
        var start = 0
        trie.matches(text) { from, to, id ->
            val token = tokens.getValue(id)
            val isInWord = from > 0 && Unicode.isWord(text.codePointBefore(from)) ||
                to < text.length && Unicode.isWord(text.codePointAt(to))
            if (!token.singleWord || !isInWord) {
                // What the token before took is not taken again.
                val left = if (token.lstrip) minOf(maxOf(spaceBefore(text, from), start), to) else from
                val right = if (token.rstrip) spaceAfter(text, to) else to
                if (start < left) words.add(span.part(start, left))
                words.add(span.part(left, right, id))
                start = right
            }
        }
        if (start < text.length) words.add(span.part(start, text.length))
    }

    private fun spaceBefore(text: String, at: Int): Int {
        var start = at
        while (start > 0 && Unicode.isSpace(text[start - 1].code)) start--
        return start
    }

    private fun spaceAfter(text: String, at: Int): Int {
        var end = at
        while (end < text.length && Unicode.isSpace(text[end].code)) end++
        return end
    }
}

/** Finds tokens in a text: the leftmost, of these the longest, none within another. */
internal class TokenTrie {
    private class Branch {
        var id = -1
        val branches = HashMap<Char, Branch>()
    }

    private val root = Branch()
    private val starts = java.util.BitSet()

    fun put(text: String, id: Int) {
        if (text.isEmpty()) return
        starts.set(text[0].code)
        var branch = root
        for (char in text) branch = branch.branches.getOrPut(char) { Branch() }
        branch.id = id
    }

    fun matches(text: String, found: (from: Int, to: Int, id: Int) -> Unit) {
        var at = 0
        while (at < text.length) {
            if (!starts[text[at].code]) {
                at++
                continue
            }
            var branch = root
            var place = at
            var id = -1
            var end = at
            while (place < text.length) {
                branch = branch.branches[text[place++]] ?: break
                if (branch.id >= 0) {
                    id = branch.id
                    end = place
                }
            }
            if (id >= 0) found(at, end, id)
            at = maxOf(end, at + 1)
        }
    }
}
