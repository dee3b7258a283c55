package dev.edgelm.text

/** Bytes as characters that can be seen, as GPT-2 has them (Radford 2019). */
internal object ByteLevel {
    private val chars = CharArray(256)
    private val bytes = IntArray(0x144) { -1 }

    init {
        var unseen = 0x100
        for (byte in 0..255) {
            val isSeen = byte in 0x21..0x7e || byte in 0xa1..0xac || byte in 0xae..0xff
            chars[byte] = if (isSeen) byte.toChar() else (unseen++).toChar()
            bytes[chars[byte].code] = byte
        }
    }

    fun encode(text: String): String {
        var size = 0
        forEachCode(text) { size += Utf8.size(it) }
        val result = CharArray(size)
        var end = 0
        forEachCode(text) { for (at in 0 until Utf8.size(it)) result[end++] = chars[Utf8.byte(it, at)] }
        return String(result)
    }

    /** The byte that a character stands for, or -1. */
    fun byte(char: Char): Int = if (char.code < bytes.size) bytes[char.code] else -1
}
