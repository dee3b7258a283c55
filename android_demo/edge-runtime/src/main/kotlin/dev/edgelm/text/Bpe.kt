package dev.edgelm.text

import dev.edgelm.BundleException

/** How a byte-pair encoding treats characters that the vocabulary lacks. */
internal class BpeOptions(
    val unknown: String?,
    val fuseUnknown: Boolean,
    val byteFallback: Boolean,
    val ignoreMerges: Boolean, // a word of the vocabulary is its own token
)

/** Byte-pair encoding (Sennrich 2016): the pairs of a word that were learnt first are merged first. */
internal class Bpe(override val pieces: Pieces, private val merges: Merges, private val options: BpeOptions) : Model {
    override val size: Int get() = pieces.size
    private val bytes = if (options.byteFallback) bytePieces(pieces) else null
    private val unknown = options.unknown?.let { pieces.id(it) } ?: -1
    private val cache = WordCache(::merged)

    override fun encode(word: String): IntArray {
        if (options.ignoreMerges) pieces.id(word).let { if (it >= 0) return intArrayOf(it) }
        return cache.ids(word)
    }

    private fun merged(word: String): IntArray {
        val symbols = symbols(word).toArray()
        return if (symbols.size < 2) symbols else Merging(symbols, merges).run()
    }

    private fun symbols(word: String): Ids {
        val symbols = Ids()
        var pending = 0 // unknown characters that are not in symbols yet
        var at = 0
        while (at < word.length) {
            val code = word.codePointAt(at)
            val end = at + Character.charCount(code)
            val id = pieces.id(word, at, end)
            if (id >= 0) {
                repeat(pending) { symbols.add(unknown) }
                pending = 0
                symbols.add(id)
            } else if (!addBytes(code, symbols) && options.unknown != null) {
                // The library keeps an unknown one back behind bytes that follow; so does this.
                if (unknown < 0) throw BundleException("The tokenizer's unknown token is not in its vocabulary.")
                if (pending == 1 && !options.fuseUnknown) symbols.add(unknown)
                pending = 1
            }
            at = end
        }
        repeat(pending) { symbols.add(unknown) }
        return symbols
    }

    private fun addBytes(code: Int, symbols: Ids): Boolean {
        val bytes = bytes ?: return false
        val size = Utf8.size(code)
        for (at in 0 until size) if (bytes[Utf8.byte(code, at)] < 0) return false
        for (at in 0 until size) symbols.add(bytes[Utf8.byte(code, at)])
        return true
    }
}

/** Pairs of tokens with their ranks and what they become. */
internal class Merges(count: Int) {
    private val keys = LongArray(Integer.highestOneBit(maxOf(count, 4)) * 4)
    private val ranks = IntArray(keys.size)
    private val results = IntArray(count)

    /** Of two equal pairs the later one counts. */
    fun put(left: Int, right: Int, rank: Int, result: Int) {
        val slot = slot(left, right)
        keys[slot] = key(left, right)
        ranks[slot] = rank
        results[rank] = result
    }

    /** -1 where the pair is not merged. */
    fun rank(left: Int, right: Int): Int = slot(left, right).let { if (keys[it] == 0L) -1 else ranks[it] }

    fun result(rank: Int): Int = results[rank]

    // No key is 0, which marks a free slot.
    private fun key(left: Int, right: Int): Long = (left + 1L shl 32) or right.toLong()

    private fun slot(left: Int, right: Int): Int {
        val key = key(left, right)
        var slot = (key * SPREAD ushr 32).toInt() and keys.size - 1
        while (keys[slot] != 0L && keys[slot] != key) slot = slot + 1 and keys.size - 1
        return slot
    }

    private companion object {
        const val SPREAD = -0x61c8864680b583ebL // the golden ratio
    }
}

/**
 * The merging of one word: its symbols as a linked list, and the pairs that can be merged in a heap, lowest rank first
 * and of one rank the leftmost. A long word costs n log n.
 */
private class Merging(private val symbols: IntArray, private val merges: Merges) {
    private val before = IntArray(symbols.size) { it - 1 }
    private val after = IntArray(symbols.size) { if (it + 1 < symbols.size) it + 1 else -1 }
    private var heap = LongArray(symbols.size + 1)
    private var waiting = 0

    fun run(): IntArray {
        for (at in 0 until symbols.size - 1) offer(at, at + 1)
        while (waiting > 0) {
            val first = poll()
            merge(first.toInt(), (first ushr 32).toInt())
        }
        var count = 0
        for (symbol in symbols) if (symbol >= 0) symbols[count++] = symbol
        return symbols.copyOf(count)
    }

    private fun merge(left: Int, rank: Int) {
        if (symbols[left] < 0) return
        val right = after[left]
        if (right < 0) return
        // A neighbour may have been merged since this pair was found.
        val rankNow = merges.rank(symbols[left], symbols[right])
        if (rankNow < 0 || merges.result(rankNow) != merges.result(rank)) return
        symbols[left] = merges.result(rank)
        symbols[right] = -1
        after[left] = after[right]
        if (after[left] >= 0) before[after[left]] = left
        if (before[left] >= 0) offer(before[left], left)
        if (after[left] >= 0) offer(left, after[left])
    }

    private fun offer(left: Int, right: Int) {
        val rank = merges.rank(symbols[left], symbols[right])
        if (rank < 0) return
        if (waiting == heap.size) heap = heap.copyOf(2 * waiting)
        val pair = rank.toLong() shl 32 or left.toLong()
        var at = waiting++
        while (at > 0 && heap[at - 1 shr 1] > pair) {
            heap[at] = heap[at - 1 shr 1]
            at = at - 1 shr 1
        }
        heap[at] = pair
    }

    private fun poll(): Long {
        val first = heap[0]
        val last = heap[--waiting]
        var at = 0
        while (2 * at + 1 < waiting) {
            var child = 2 * at + 1
            if (child + 1 < waiting && heap[child + 1] < heap[child]) child++
            if (heap[child] >= last) break
            heap[at] = heap[child]
            at = child
        }
        heap[at] = last
        return first
    }
}
