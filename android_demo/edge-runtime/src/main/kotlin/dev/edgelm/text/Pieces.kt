package dev.edgelm.text

/**
 * The texts of a vocabulary and their ids, without an object for each: a quarter of a million of those would be most of
 * what a phone gives an app.
 */
internal class Pieces private constructor(
    private val chars: CharArray,
    private val starts: IntArray, // of each entry, and the end
    private val ids: IntArray, // of each entry
) {
    private val slots = IntArray(Integer.highestOneBit(maxOf(ids.size, 4)) * 4) // entry + 1
    private val entries: IntArray // of each id, or -1

    /** How many different texts there are. */
    var size = 0
        private set

    /** The maximum length of a text. */
    var longest = 0
        private set

    init {
        entries = IntArray((ids.maxOrNull() ?: -1) + 1) { -1 }
        for (entry in ids.indices) put(entry)
    }

    /** Of two equal texts the later one counts. */
    private fun put(entry: Int) {
        val from = starts[entry]
        val length = starts[entry + 1] - from
        var hash = 0
        for (at in from until from + length) hash = step(hash, chars[at])
        var slot = slot(hash)
        while (slots[slot] != 0 && !isSame(slots[slot] - 1, entry)) slot = slot + 1 and slots.size - 1
        if (slots[slot] == 0) size++
        slots[slot] = entry + 1
        entries[ids[entry]] = entry
        longest = maxOf(longest, length)
    }

    private fun isSame(one: Int, other: Int): Boolean {
        val length = starts[one + 1] - starts[one]
        if (length != starts[other + 1] - starts[other]) return false
        for (at in 0 until length) if (chars[starts[one] + at] != chars[starts[other] + at]) return false
        return true
    }

    fun id(text: CharSequence, from: Int = 0, to: Int = text.length): Int {
        var hash = 0
        for (at in from until to) hash = step(hash, text[at])
        return find(hash, text, from, to)
    }

    /** The id of a part of a text whose characters [step] has taken into [hash]; -1 where it is none. */
    fun find(hash: Int, text: CharSequence, from: Int, to: Int): Int {
        var slot = slot(hash)
        while (true) {
            val entry = slots[slot] - 1
            if (entry < 0) return -1
            if (isEntry(entry, text, from, to)) return ids[entry]
            slot = slot + 1 and slots.size - 1
        }
    }

    private fun isEntry(entry: Int, text: CharSequence, from: Int, to: Int): Boolean {
        val start = starts[entry]
        if (starts[entry + 1] - start != to - from) return false
        for (at in from until to) if (chars[start + at - from] != text[at]) return false
        return true
    }

    fun text(id: Int): String? {
        val entry = if (id in entries.indices) entries[id] else -1
        return if (entry < 0) null else String(chars, starts[entry], starts[entry + 1] - starts[entry])
    }

    private fun slot(hash: Int): Int = (hash * SPREAD).let { it xor (it ushr 15) } and slots.size - 1

    class Builder {
        private var chars = CharArray(1 shl 16)
        private var length = 0
        private val starts = Ids().apply { add(0) }
        private val ids = Ids()

        /** How many texts were added. */
        val count: Int get() = ids.size

        fun add(text: String, id: Int) {
            if (length + text.length > chars.size) chars = chars.copyOf(maxOf(2 * chars.size, length + text.length))
            text.toCharArray(chars, length)
            length += text.length
            starts.add(length)
            ids.add(id)
        }

        /** One of the texts that were added. */
        operator fun get(at: Int): String = String(chars, starts[at], starts[at + 1] - starts[at])

        fun build(): Pieces = Pieces(chars.copyOf(length), starts.toArray(), ids.toArray())
    }

    companion object {
        private const val SPREAD = -0x61c88647 // the golden ratio: neighbouring hashes fall far apart

        /** The hash of a text that goes on with a character. */
        fun step(hash: Int, char: Char): Int = hash * 31 + char.code
    }
}
