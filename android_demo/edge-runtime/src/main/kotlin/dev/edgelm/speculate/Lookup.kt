package dev.edgelm.speculate

internal const val SPREAD = 0x9E3779B1L // 2^32 over the golden ratio: multiplying by it spreads the bits (Knuth, TAOCP 3, 6.4)

/** The slot of a hash in a table of which [mask] is the last one. */
internal fun slot(hash: Long, mask: Int): Int = (hash shr 12).toInt() and mask

/**
 * What followed the longest end of the text at its latest earlier occurrence (Saxena 2023, "Prompt Lookup Decoding").
 *
 * The index is that of LZ77 compressors, over the last [size] tokens, a power of two: a hash table gives the last place of
 * each pair of tokens, another the place before that, and candidates are compared backwards.
 */
internal class Lookup(private val size: Int) : Drafter {
    override val priors get() = PRIORS

    private val mask = size - 1
    private val slots = 2 * size - 1
    private val tokens = IntArray(size) // of each place, modulo the size

    // By the hash of a pair of tokens: the last place after such a pair; and for each place the one before it.
    private val pairs = IntArray(2 * size)
    private val before = IntArray(size)
    private val singles = IntArray(2 * size) // by the hash of a token: the last place after it
    private var start = 0 // the place of the text's first token here
    private var end = 0 // the place after its last
    private var single = -1 // the place after the last token's last occurrence
    private var place = -1 // the place after the match of the text's end
    private var length = 0 // the match's

    override fun begin(tokens: IntArray) {
        this.tokens.fill(0)
        pairs.fill(-1)
        before.fill(-1)
        singles.fill(-1)
        start = maxOf(0, tokens.size - size) // those before would be overwritten at once
        end = start
        single = -1
        place = -1
        length = 0
        accept(tokens, start, tokens.size)
    }

    override fun accept(tokens: IntArray, count: Int) = accept(tokens, 0, count)

    private fun accept(given: IntArray, from: Int, to: Int) {
        for (i in from until to) {
            val token = given[i]
            if (place >= 0 && tokens[place and mask] == token) { // the match goes on
                place++
                length = minOf(length + 1, LONGEST)
            } else {
                place = -1
                length = 0
            }
            val pair = slot((tokens[(end - 1) and mask] * SPREAD xor token.toLong()) * SPREAD, slots)
            val one = slot(token * SPREAD, slots)
            tokens[end and mask] = token
            end++
            before[end and mask] = pairs[pair]
            pairs[pair] = end
            single = singles[one]
            singles[one] = end
        }
        start = maxOf(start, end - size)
        if (place <= start) place = -1
    }

    override fun propose(most: Int, minChance: Double, draft: Draft) {
        draft.size = 0
        val match = match()
        if (match > 0) for (i in 0 until most) draft.add(copied(i), minOf(match + i, LONGEST))
    }

    /** How many tokens of the text's end stood there before, up to [LONGEST]. */
    fun match(): Int {
        if (place < 0 || length < SETTLED) search()
        return if (place >= 0) length else 0
    }

    /** The [i]th token that followed them: without an end, as a text that repeats itself is drafted beyond its own. */
    fun copied(i: Int): Int = tokens[(place + i % (end - place)) and mask]

    /** Look for the longest match of the text's end; of equals the latest. */
    private fun search() {
        place = -1
        length = 0
        var at = before[end and mask]
        for (i in 0 until CANDIDATES) {
            if (at <= start) break
            val limit = minOf(LONGEST, at - start)
            var same = 0
            while (same < limit && tokens[(at - 1 - same) and mask] == tokens[(end - 1 - same) and mask]) same++
            if (same > length) {
                place = at
                length = same
                if (same == LONGEST) break
            }
            at = before[at and mask]
        }
        if (length == 0 && single > start && tokens[(single - 1) and mask] == tokens[(end - 1) and mask]) {
            place = single
            length = 1
        }
    }

    companion object {
        const val LONGEST = 15 // tokens compared; a longer match is graded like this one
        const val PLACE = 24 // bytes for each token of the index
        private const val SETTLED = 4 // tokens of a match that is kept while it goes on; a shorter one is looked for anew
        private const val CANDIDATES = 8 // places compared, the latest first
        private const val SMALLEST = 256 // minimum tokens of an index

        // By the length of the match, as Python's `edge.runtime.speculate.lookup` has them, where they were measured.
        private val PRIORS = doubleArrayOf(
            0.0, 0.25, 0.46, 0.6, 0.66, 0.68, 0.72, 0.78, 0.83, 0.85, 0.85, 0.86, 0.86, 0.87, 0.9, 0.96,
        )

        /** Tokens of an index for texts of up to [context] tokens, a power of two. */
        fun indexSize(context: Int): Int {
            var size = SMALLEST
            while (size < context) size *= 2
            return size
        }
    }
}
