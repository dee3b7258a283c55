package dev.edgelm.text

/** What joins a character to its neighbours, in the order of [UnicodeTables.CLUSTERS]. */
private object Joins {
    const val CONTROL = 1
    const val EXTEND = 2
    const val SPACING = 3
    const val PREPEND = 4
    const val REGIONAL = 5
    const val L = 6
    const val V = 7
    const val T = 8
    const val PICTOGRAPH = 9
    const val CONSONANT = 10
    const val LINKER = 11

    const val ZWNJ = 0x200c
    const val ZWJ = 0x200d
}

/** Characters as readers see them: extended grapheme clusters (Unicode Standard Annex 29). */
internal object Clusters {
    private val joins = Runs(UnicodeTables.CLUSTERS)

    /** Where the cluster ends that starts at [start]. */
    fun end(text: String, start: Int): Int {
        var left = text.codePointAt(start)
        var at = start + Character.charCount(left)
        var kind = joins.of(left)
        var regionals = if (kind == Joins.REGIONAL) 1 else 0
        var picture = kind == Joins.PICTOGRAPH // and what extended it
        var consonant = kind == Joins.CONSONANT
        var linked = false
        while (at < text.length) {
            val right = text.codePointAt(at)
            val next = joins.of(right)
            val extends = next == Joins.EXTEND || next == Joins.LINKER || right == Joins.ZWJ
            val joined = when {
                left == '\r'.code && right == '\n'.code -> true
                kind == Joins.CONTROL || next == Joins.CONTROL -> false
                extends || next == Joins.SPACING || kind == Joins.PREPEND -> true
                next == Joins.CONSONANT && consonant && linked -> true
                next == Joins.PICTOGRAPH && picture && left == Joins.ZWJ -> true
                next == Joins.REGIONAL && kind == Joins.REGIONAL -> regionals % 2 == 1
                else -> syllable(kind, left, next, right)
            }
            if (!joined) return at
            if (next == Joins.REGIONAL) regionals++ else regionals = 0
            picture = next == Joins.PICTOGRAPH || picture && extends
            consonant = next == Joins.CONSONANT || consonant && extends && right != Joins.ZWNJ
            linked = consonant && next != Joins.CONSONANT && (linked || next == Joins.LINKER)
            left = right
            kind = next
            at += Character.charCount(right)
        }
        return at
    }

    /** Whether two parts of a Hangul syllable belong together. */
    private fun syllable(kind: Int, left: Int, next: Int, right: Int): Boolean {
        val full = left in 0xac00..0xd7a3
        val open = full && (left - 0xac00) % 28 == 0
        return when {
            kind == Joins.L -> next == Joins.L || next == Joins.V || right in 0xac00..0xd7a3
            kind == Joins.V || open -> next == Joins.V || next == Joins.T
            kind == Joins.T || full -> next == Joins.T
            else -> false
        }
    }
}
