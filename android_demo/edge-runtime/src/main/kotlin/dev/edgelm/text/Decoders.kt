package dev.edgelm.text

/** Turns the texts of tokens into a text, which is theirs together. */
internal interface Decoder {
    fun decode(tokens: List<String>): List<String>
}

internal class DecoderSequence(private val parts: List<Decoder>) : Decoder {
    override fun decode(tokens: List<String>): List<String> = parts.fold(tokens) { each, part -> part.decode(each) }
}

/** Tokens in bytes, each as a character; a token with other characters is its own UTF-8. */
internal object ByteLevelDecoder : Decoder {
    override fun decode(tokens: List<String>): List<String> {
        val bytes = ByteArray(4 * tokens.sumOf { it.length })
        var size = 0
        for (token in tokens) {
            if (token.all { ByteLevel.byte(it) >= 0 }) {
                for (char in token) bytes[size++] = ByteLevel.byte(char).toByte()
            } else {
                forEachCode(token) { for (at in 0 until Utf8.size(it)) bytes[size++] = Utf8.byte(it, at).toByte() }
            }
        }
        return listOf(Utf8.decode(bytes, size))
    }
}

internal class MetaspaceDecoder(private val mark: Char, private val scheme: Scheme) : Decoder {
    override fun decode(tokens: List<String>): List<String> = tokens.mapIndexed { place, token ->
        val by = if (place == 0 && scheme != Scheme.NEVER) "" else " "
        token.replace(mark.toString(), by)
    }
}

/** Tokens such as `<0x0A>` as bytes; where a run of them is no text, each becomes U+FFFD. */
internal object ByteFallback : Decoder {
    override fun decode(tokens: List<String>): List<String> {
        val result = ArrayList<String>(tokens.size)
        val bytes = ByteArray(tokens.size)
        var size = 0
        for (token in tokens) {
            val byte = byte(token)
            if (byte >= 0) {
                bytes[size++] = byte.toByte()
            } else {
                addRun(bytes, size, result)
                size = 0
                result += token
            }
        }
        addRun(bytes, size, result)
        return result
    }

    private fun addRun(bytes: ByteArray, size: Int, result: ArrayList<String>) {
        if (size == 0) return
        if (Utf8.isWhole(bytes, size)) result += Utf8.decode(bytes, size) else repeat(size) { result += "\ufffd" }
    }

    private fun byte(token: String): Int {
        if (token.length != 6 || !token.startsWith("<0x") || token[5] != '>') return -1
        // The library reads a sign, too.
        if (token[3] == '+') return hex(token[4])
        val high = hex(token[3])
        val low = hex(token[4])
        return if (high < 0 || low < 0) -1 else 16 * high + low
    }

    private fun hex(char: Char): Int = when (char) {
        in '0'..'9' -> char - '0'
        in 'a'..'f' -> char - 'a' + 10
        in 'A'..'F' -> char - 'A' + 10
        else -> -1
    }
}

internal object Fuse : Decoder {
    override fun decode(tokens: List<String>): List<String> = listOf(tokens.joinToString(""))
}

internal class ReplaceDecoder(private val pattern: Pattern, private val by: String) : Decoder {
    override fun decode(tokens: List<String>): List<String> = tokens.map { pattern.replace(it, by) }
}

/** Takes up to so many of a character from the start and the end of each token. */
internal class StripDecoder(private val content: Int, private val start: Int, private val stop: Int) : Decoder {
    override fun decode(tokens: List<String>): List<String> = tokens.map(::stripped)

    private fun stripped(token: String): String {
        val width = Character.charCount(content)
        var from = 0
        var count = 0
        while (count++ < start && from < token.length && token.codePointAt(from) == content) from += width
        var to = token.length
        count = 0
        while (count++ < stop && to > from && token.codePointBefore(to) == content) to -= width
        return token.substring(from, to)
    }
}
