package dev.edgelm.text

import dev.edgelm.BundleException

/**
 * A unigram language model (Kudo 2018): of all ways to write a word in pieces, the one whose scores have the largest
 * sum; of equal sums the one that was found first (Viterbi). [unknown]: an id, or -1.
 */
internal class Unigram(
    override val pieces: Pieces,
    private val scores: DoubleArray,
    private val unknown: Int,
    byteFallback: Boolean,
) : Model {
    override val size: Int get() = scores.size
    private val bytes = if (byteFallback) bytePieces(pieces) else null
    private val unknownScore = (scores.minOrNull() ?: 0.0) - PENALTY
    private val cache = WordCache { best(it) }

    override fun encode(word: String): IntArray = cache.ids(word)

    override fun encodePlain(word: String, barred: Set<Int>): IntArray = best(word, barred)

    private fun best(word: String, barred: Set<Int> = emptySet()): IntArray {
        val best = DoubleArray(word.length + 1)
        val starts = IntArray(word.length + 1) { -1 } // where the piece begins that ends here
        val tokens = IntArray(word.length + 1)
        var start = 0
        while (start < word.length) {
            val single = start + Character.charCount(word.codePointAt(start))
            val last = minOf(word.length, start + pieces.longest)
            var hasSingle = false
            var hash = 0
            for (end in start + 1..last) {
                hash = Pieces.step(hash, word[end - 1])
                val token = pieces.find(hash, word, start, end)
                if (token < 0 || token in barred) continue
                hasSingle = hasSingle || end == single
                val score = scores[token] + best[start]
                if (starts[end] < 0 || score > best[end]) {
                    best[end] = score
                    starts[end] = start
                    tokens[end] = token
                }
            }
            if (!hasSingle) {
                val score = unknownScore + best[start]
                if (starts[single] < 0 || score > best[single]) {
                    best[single] = score
                    starts[single] = start
                    tokens[single] = if (unknown >= 0) unknown else throw missing()
                }
            }
            start = single
        }
        return backwards(word, starts, tokens, barred)
    }

    /** The tokens from the end on; adjacent unknown ones are one. */
    private fun backwards(word: String, starts: IntArray, tokens: IntArray, barred: Set<Int>): IntArray {
        val found = Ids() // reversed
        var end = word.length
        while (end > 0) {
            var start = starts[end]
            if (tokens[end] != unknown) {
                found.add(tokens[end])
            } else {
                while (start > 0 && tokens[start] == unknown) start = starts[start]
                addUnknown(word, start, end, found, barred)
            }
            end = start
        }
        return found.toArray().apply { reverse() }
    }

    private fun addUnknown(word: String, from: Int, to: Int, found: Ids, barred: Set<Int>) {
        val whole = pieces.id(word, from, to)
        if (whole >= 0 && whole !in barred) return found.add(whole)
        val bytes = bytes ?: return found.add(unknown)
        val ids = Ids()
        var at = from
        while (at < to) {
            val code = word.codePointAt(at)
            for (byte in 0 until Utf8.size(code)) ids.add(bytes[Utf8.byte(code, byte)])
            at += Character.charCount(code)
        }
        val all = ids.toArray()
        if (all.any { it < 0 }) return found.add(unknown)
        for (each in all.reversed()) found.add(each)
    }

    private fun missing() =
        BundleException("The tokenizer has no token for a character of the text, and none for unknown.")

    private companion object {
        const val PENALTY = 10.0 // of an unknown character, below the lowest score
    }
}
