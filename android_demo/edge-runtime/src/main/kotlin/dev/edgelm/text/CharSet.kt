package dev.edgelm.text

/** A set of characters: general categories, ranges and other sets, or all but these. */
internal class CharSet private constructor(
    private val categories: Int,
    private val ranges: IntArray, // first and last of each
    private val others: List<CharSet>,
    private val negated: Boolean,
) {
    private val low = ascii(0)
    private val high = ascii(64)

    operator fun contains(code: Int): Boolean = when {
        code < 64 -> low ushr code and 1L == 1L
        code < 128 -> high ushr code - 64 and 1L == 1L
        else -> holds(code)
    }

    fun negate(): CharSet = CharSet(categories, ranges, others, !negated)

    private fun ascii(from: Int): Long {
        var bits = 0L
        for (place in 0 until 64) if (holds(from + place)) bits = bits or (1L shl place)
        return bits
    }

    private fun holds(code: Int): Boolean = isListed(code) != negated

    private fun isListed(code: Int): Boolean {
        if (categories ushr Unicode.category(code) and 1 == 1) return true
        for (at in ranges.indices step 2) if (code >= ranges[at] && code <= ranges[at + 1]) return true
        for (other in others) if (code in other) return true
        return false
    }

    /** Collects what a set holds. */
    class Builder {
        private var categories = 0
        private val ranges = ArrayList<Int>()
        private val others = ArrayList<CharSet>()

        fun category(bits: Int) = apply { categories = categories or bits }

        fun range(first: Int, last: Int = first) = apply { ranges += listOf(first, last) }

        fun set(other: CharSet) = apply { others += other }

        fun build(): CharSet = CharSet(categories, ranges.toIntArray(), others, false)
    }

    companion object {
        val space: CharSet = Builder().range(0x09, 0x0d).range(0x20).range(0x85).range(0xa0).range(0x1680)
            .range(0x2000, 0x200a).range(0x2028, 0x2029).range(0x202f).range(0x205f).range(0x3000).build()
        val digit: CharSet = Builder().category(Category.ND.bit).build()

        /** What `\w` is within brackets. */
        val word: CharSet = Unicode.wordRanges.fold(Builder().category(Unicode.WORDS)) { set, each ->
            set.range(each.first, each.last)
        }.build()

        /** And outside of them, where Oniguruma takes superscripts and fractions of Latin-1 for word characters. */
        val wordAlone: CharSet =
            Builder().set(word).range(0xb2, 0xb3).range(0xb9).range(0xbc, 0xbe).build()
        val hexDigit: CharSet =
            Builder().range('0'.code, '9'.code).range('a'.code, 'f'.code).range('A'.code, 'F'.code).build()
        val anyButNewline: CharSet = Builder().range('\n'.code).build().negate()

        fun of(code: Int): CharSet = Builder().range(code).build()

        /** The general categories of a name such as `L` or `Lu`, as bits; 0 where there is none. */
        fun categories(name: String): Int =
            Category.entries.filter { it.name.startsWith(name.uppercase()) && name.length in 1..2 }
                .fold(0) { bits, each -> bits or each.bit }
    }
}
