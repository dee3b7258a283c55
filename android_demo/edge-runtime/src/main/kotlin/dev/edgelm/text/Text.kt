package dev.edgelm.text

/** Token ids, as many as come. */
internal class Ids {
    private var ids = IntArray(64)
    var size = 0
        private set

    fun add(id: Int) {
        if (size == ids.size) ids = ids.copyOf(2 * size)
        ids[size++] = id
    }

    fun addAll(others: IntArray) {
        if (size + others.size > ids.size) ids = ids.copyOf(maxOf(2 * ids.size, size + others.size))
        others.copyInto(ids, size)
        size += others.size
    }

    operator fun get(at: Int): Int = ids[at]

    fun toArray(from: Int = 0): IntArray = ids.copyOfRange(from, size)
}

/**
 * A part of a text on its way to tokens.
 *
 * [first]: how many of its characters come from the first character of the whole text. Metaspace asks for it, where it
 * marks the start of a text only. [token]: of an added token that the part is, or -1.
 */
internal class Span(val text: String, val first: Int, val token: Int = -1) {
    fun part(from: Int, to: Int, token: Int = -1): Span = when {
        from == 0 && to == text.length && token == this.token -> this
        else -> Span(text.substring(from, to), minOf(maxOf(first - from, 0), to - from), token)
    }

    /** The part without a mark that never begins it. */
    fun without(mark: String): Span = if (mark in text) Span(text.replace(mark, ""), first, token) else this
}

internal object Utf8 {
    private const val REPLACEMENT = '\ufffd'

    /** Whether a text has no half of a surrogate pair by itself. */
    fun isValid(text: String): Boolean {
        var at = 0
        while (at < text.length) {
            val char = text[at++]
            if (!char.isSurrogate()) continue
            if (!char.isHighSurrogate() || at == text.length || !text[at++].isLowSurrogate()) return false
        }
        return true
    }

    /** How many bytes a character has. */
    fun size(code: Int): Int = if (code < 0x80) 1 else if (code < 0x800) 2 else if (code < 0x10000) 3 else 4

    /** One of them. */
    fun byte(code: Int, at: Int): Int {
        val size = size(code)
        if (size == 1) return code
        val bits = code ushr 6 * (size - 1 - at)
        return if (at == 0) bits or (0xf00 ushr size and 0xff) else bits and 0x3f or 0x80
    }

    /** The text of some bytes; each longest beginning of a character that does not go on becomes one U+FFFD. */
    fun decode(bytes: ByteArray, size: Int): String {
        val text = StringBuilder(size)
        var at = 0
        while (at < size) {
            val lead = bytes[at].toInt() and 0xff
            val length = length(lead)
            var code = if (length == 1) lead else lead and (0xff ushr length + 1)
            var read = 1
            while (read < length && at + read < size) {
                val next = bytes[at + read].toInt() and 0xff
                if (next !in range(lead, read)) break
                code = code shl 6 or (next and 0x3f)
                read++
            }
            if (length == read) text.appendCodePoint(code) else text.append(REPLACEMENT)
            at += read
        }
        return text.toString()
    }

    /** Whether all bytes are whole characters. */
    fun isWhole(bytes: ByteArray, size: Int): Boolean {
        var at = 0
        while (at < size) {
            val lead = bytes[at].toInt() and 0xff
            val length = length(lead)
            if (length == 0 || at + length > size) return false
            for (read in 1 until length) if ((bytes[at + read].toInt() and 0xff) !in range(lead, read)) return false
            at += length
        }
        return true
    }

    private fun length(lead: Int): Int = when (lead) {
        in 0x00..0x7f -> 1
        in 0xc2..0xdf -> 2
        in 0xe0..0xef -> 3
        in 0xf0..0xf4 -> 4
        else -> 0
    }

    /** What may follow: no character is written longer than it must be, none is a surrogate or beyond the last one. */
    private fun range(lead: Int, at: Int): IntRange = when {
        at > 1 -> 0x80..0xbf
        lead == 0xe0 -> 0xa0..0xbf
        lead == 0xed -> 0x80..0x9f
        lead == 0xf0 -> 0x90..0xbf
        lead == 0xf4 -> 0x80..0x8f
        else -> 0x80..0xbf
    }
}
