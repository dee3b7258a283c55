package dev.edgelm.text

import java.text.Normalizer

/** General categories, in the order of [UnicodeTables.CATEGORIES]. */
internal enum class Category {
    LU, LL, LT, LM, LO, MN, MC, ME, ND, NL, NO, PC, PD, PS, PE, PI, PF, PO, SM, SC, SK, SO, ZS, ZL, ZP, CC, CF, CO, CN;

    val bit: Int get() = 1 shl ordinal
}

/** What the `tokenizers` library knows about characters, the same on every phone. */
internal object Unicode {
    private const val MARKS = 0xe0
    private const val NUMBERS = 0x700
    private const val PUNCTUATION = 0x3f800

    private val categories = Runs(UnicodeTables.CATEGORIES)
    private val basic = ByteArray(0x10000).also { categories.fill(it) }
    private val numbers = Ranges.read(UnicodeTables.NUMBERS)
    private val punctuation = Ranges.read(UnicodeTables.PUNCTUATION)
    private val marks = Ranges.read(UnicodeTables.MARKS)
    private val words = Ranges.read(UnicodeTables.WORDS)
    val wordRanges: List<IntRange> get() = words.toList()

    /** Categories of all word characters but those of [wordRanges]. */
    const val WORDS = 0xbff
    private val inert = Ranges.read(UnicodeTables.INERT)
    private val lower: Map<Int, Int> by lazy { readLower() }

    /** The place of a character's category in [Category]. */
    fun category(code: Int): Int = if (code < basic.size) basic[code].toInt() else categories.of(code)

    fun isSpace(code: Int): Boolean = when (code) {
        in 0x09..0x0d, 0x20, 0x85, 0xa0, 0x1680, in 0x2000..0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000 -> true
        else -> false
    }

    fun isNumber(code: Int): Boolean = isIn(NUMBERS, code) || code in numbers

    fun isPunctuation(code: Int): Boolean = isIn(PUNCTUATION, code) != code in punctuation

    fun isMark(code: Int): Boolean = isIn(MARKS, code) != code in marks

    /** What `\w` is where the library has a pattern of its own. */
    fun isWord(code: Int): Boolean = isIn(WORDS, code) || code in words || code == 0x200c || code == 0x200d

    /** The lower-case form of a character by itself; no other is in two characters. */
    fun lower(code: Int): String = if (code == 0x130) "i\u0307" else String(Character.toChars(lowerCode(code)))

    fun lowerCode(code: Int): Int = when {
        code > 0x7f -> lower[code] ?: code
        code in 'A'.code..'Z'.code -> code + 32
        else -> code
    }

    /** All characters with this lower-case form. */
    fun withLower(code: Int): List<Int> = (0..0x7f).filter { lowerCode(it) == code } +
        lower.filterValues { it == code }.keys

    /**
     * A normalization form as the library's version of Unicode has it, which is old: characters that came later are
     * left alone, and nothing moves past them.
     */
    fun normalize(text: String, form: Normalizer.Form): String {
        if (text.all { it.code < 0x80 }) return text
        val result = StringBuilder(text.length + 16)
        var start = 0
        var at = 0
        while (at < text.length) {
            val code = text.codePointAt(at)
            val end = at + Character.charCount(code)
            if (code in inert) {
                result.append(Normalizer.normalize(text.substring(start, at), form)).appendCodePoint(code)
                start = end
            }
            at = end
        }
        return result.append(Normalizer.normalize(text.substring(start), form)).toString()
    }

    private fun isIn(mask: Int, code: Int): Boolean = mask ushr category(code) and 1 == 1

    private fun readLower(): Map<Int, Int> {
        val fields = UnicodeTables.LOWER.split(' ').map { it.toInt(32) }
        val result = HashMap<Int, Int>(4096)
        for ((first, count, step, distance) in fields.chunked(4)) {
            for (each in 0 until count) result[first + each * step] = first + each * step + distance
        }
        return result
    }
}

/** A value for every code point, as runs of letters and lengths. */
internal class Runs(text: String) {
    private val starts: IntArray
    private val values: ByteArray

    init {
        val count = text.count { it.isLetter() }
        starts = IntArray(count)
        values = ByteArray(count)
        var run = 0
        var code = 0
        var at = 0
        while (at < text.length) {
            starts[run] = code
            val letter = text[at++]
            values[run++] = (if (letter <= 'Z') letter - 'A' else letter - 'w' + 26).toByte()
            val from = at
            while (at < text.length && !text[at].isLetter()) at++
            code += text.substring(from, at).toInt(32)
        }
    }

    fun of(code: Int): Int = values[at(code)].toInt()

    /** The values of the first code points. */
    fun fill(target: ByteArray) {
        for (run in starts.indices) {
            val end = if (run + 1 < starts.size) minOf(starts[run + 1], target.size) else target.size
            if (starts[run] < end) target.fill(values[run], starts[run], end)
        }
    }

    private fun at(code: Int): Int {
        val found = starts.binarySearch(code)
        return if (found >= 0) found else -found - 2
    }

    /** The letter of a value: no digit of base 32. */
    private fun Char.isLetter(): Boolean = this in 'A'..'Z' || this in 'w'..'z'
}

/** A set of code points as the starts and ends of its ranges, in order. */
internal class Ranges(private val edges: IntArray) {
    operator fun contains(code: Int): Boolean {
        if (edges.isEmpty() || code < edges[0]) return false
        val found = edges.binarySearch(code)
        return (if (found >= 0) found else -found - 2) and 1 == 0
    }

    fun toList(): List<IntRange> = List(edges.size / 2) { edges[2 * it] until edges[2 * it + 1] }

    companion object {
        fun read(text: String): Ranges {
            var edge = 0
            val distances = text.split(' ')
            return Ranges(IntArray(distances.size) { distances[it].toInt(32).let { each -> edge += each; edge } })
        }
    }
}
