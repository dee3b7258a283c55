package dev.edgelm.speculate

import dev.edgelm.speculate.Successors.Companion.NONE
import dev.edgelm.speculate.Successors.Companion.level
import dev.edgelm.speculate.Successors.Companion.token
import kotlin.math.exp

/**
 * What [Lookup] finds over the last [size] tokens, weighed by counts of what followed what, and what the model usually
 * says by the bundle's [table]. Evidence adds up as log-odds; the grade is the sum, in steps, and the kind of evidence.
 *
 * The weights are those of Python's `edge.runtime.speculate.blend`, where they were fitted.
 */
internal class Blend(size: Int, private val table: Successors?) : Drafter {
    override val priors get() = PRIORS

    private val lookup = Lookup(size)
    private val mask = 2 * size - 1

    // By hash: how often a token was followed by any, by a certain one, and a pair by a certain one.
    private val ones = ByteArray(2 * size)
    private val pairs = ByteArray(2 * size)
    private val triples = ByteArray(2 * size)

    // The text's last tokens.
    private var third = NONE
    private var second = NONE
    private var last = NONE

    override fun begin(tokens: IntArray) {
        lookup.begin(tokens)
        ones.fill(0)
        pairs.fill(0)
        triples.fill(0)
        third = NONE
        second = NONE
        last = NONE
        count(tokens, tokens.size)
    }

    override fun accept(tokens: IntArray, count: Int) {
        lookup.accept(tokens, count)
        count(tokens, count)
    }

    private fun count(tokens: IntArray, count: Int) {
        for (i in 0 until count) {
            val token = tokens[i]
            if (last != NONE) {
                val two = pair(second, last)
                ones.add(slot(last * SPREAD, mask))
                pairs.add(slot(pair(last, token), mask))
                triples.add(slot((two xor token.toLong()) * SPREAD, mask))
            }
            third = second
            second = last
            last = token
        }
    }

    override fun propose(most: Int, minChance: Double, draft: Draft) {
        draft.size = 0
        val match = lookup.match()
        val first = if (match > 0) lookup.copied(0) else NONE
        val said = table?.after(third, second, last) ?: NONE
        var odds = NEVER
        if (said != NONE && (match == 0 || (match < 3 && token(said) != first))) {
            odds = when (match) {
                0 -> NO_MATCH
                1 -> RIVAL_ONE[afterOne(last, first)]
                else -> RIVAL_TWO
            }
            odds += LEVEL[level(said)] + HERE[afterOne(last, token(said))]
        }
        if (match > 0) copy(match, most, minChance, said, odds, draft)
        if (draft.size == 0 && odds != NEVER) follow(said, odds, minOf(most, FOLLOWED), minChance, draft)
    }

    /**
     * Draft [Lookup]'s tokens up to where the chance that all are accepted falls below [minChance]; nothing where the
     * log-odds of the first one are below the [rival]'s. [saidFirst]: what the table says after the text.
     */
    private fun copy(match: Int, most: Int, minChance: Double, saidFirst: Int, rival: Double, draft: Draft) {
        var third = this.third
        var second = this.second
        var last = this.last
        var said = saidFirst
        var followed = 1
        var accepted = 1.0
        // How often tokens and pairs followed each other, by hashes of which each is made from the one before.
        var one = last * SPREAD
        var two = pair(second, last)
        var length = match
        while (true) {
            val token = lookup.copied(length - match)
            val pair = (one xor token.toLong()) * SPREAD
            val triple = (two xor token.toLong()) * SPREAD
            var odds = LENGTHS[minOf(length, Lookup.LONGEST)]
            odds += AFTER_ONE[agreement(ones.at(one), pairs.at(pair))]
            odds += AFTER_TWO[agreement(pairs.at(two) - followed, triples.at(triple))]
            if (length < TABLE_BELOW && table != null) {
                odds += (if (length > 1) AGAINST_LONGER else AGAINST_ONE)[against(said, token)]
            }
            if (draft.size == 0 && odds < rival) return
            val score = score(odds)
            draft.add(token, (if (length == 1) ONE else if (length < 5) SHORT else LONG) * SCORES + score)
            accepted *= PRIORS[score]
            if (accepted < minChance || draft.size == most) return
            third = second
            second = last
            last = token
            followed = 0
            one = token * SPREAD
            two = pair
            length++
            if (length < TABLE_BELOW && table != null) said = table.after(third, second, last)
        }
    }

    /** Draft the chain of the table, from what it says after the text, [saidFirst], which has these log-odds. */
    private fun follow(saidFirst: Int, oddsFirst: Double, most: Int, minChance: Double, draft: Draft) {
        var third: Int
        var second = this.second
        var last = this.last
        var said = saidFirst
        var odds = oddsFirst
        var kind = SAID
        var accepted = 1.0
        while (said != NONE && draft.size < most) {
            val score = score(odds)
            draft.add(token(said), kind * SCORES + score)
            accepted *= PRIORS[score]
            if (accepted < minChance) return
            third = second
            second = last
            last = token(said)
            said = table!!.after(third, second, last)
            if (said != NONE) {
                kind = SAID_ON
                odds = FOLLOWING + LEVEL[level(said)] + HERE[afterOne(last, token(said))]
            }
        }
    }

    /** The class of how often the token [last] went on like this. */
    private fun afterOne(last: Int, token: Int): Int = agreement(ones.at(last * SPREAD), pairs.at(pair(last, token)))

    private fun ByteArray.at(hash: Long): Int = this[slot(hash, mask)].toInt() and 0xFF

    private fun ByteArray.add(slot: Int) {
        if (this[slot] != MAXIMUM) this[slot]++
    }

    private companion object {
        const val MAXIMUM: Byte = -1 // 255 times, as an unsigned byte

        // Log-odds of a copied token: by the length of the match; by how often the token before, and the pair before, went
        // on like this (`agreement`); by what the table says (`against`), after a match of one token and of more.
        val LENGTHS = doubleArrayOf(
            0.0, -1.5, -0.36, 0.18, 0.41, 0.88, 0.88, 0.88, 0.88, 1.55, 1.55, 1.55, 1.55, 1.55, 1.55, 2.05,
        )
        val AFTER_ONE = doubleArrayOf(0.41, 1.13, 1.81, 0.64, -0.03, 0.05, -0.16, -0.09, -0.54, 0.0, 0.0)
        val AFTER_TWO = doubleArrayOf(0.3, 0.63, 1.46, 0.52, -0.41, -0.01, -0.44, 0.59, -0.21, 0.51, 0.27)
        val AGAINST_ONE = doubleArrayOf(0.53, 0.93, 1.81, 1.24, -0.27, 0.0)
        val AGAINST_LONGER = doubleArrayOf(-0.11, 0.43, 0.92, 1.15, -0.03, -0.27)

        // Of the table's token: by its level; by how often the token before went on like this in the text; and by its
        // rival: no match, a match of two tokens, the table's own token before it, or a match of one token, by how often
        // that one came.
        val LEVEL = doubleArrayOf(-2.75, -2.32, -2.09, -1.43, -0.89, 0.25, 0.11, 0.86, 1.25, 2.03, 2.25, 2.75)
        val HERE = doubleArrayOf(-0.09, 0.18, 0.96, 0.71, 0.3, -0.16, -0.49, 0.48, -0.34, -0.64, -0.76)
        const val NO_MATCH = 0.63
        const val RIVAL_TWO = -0.83
        const val FOLLOWING = 0.83
        val RIVAL_ONE = doubleArrayOf(0.33, -0.44, -0.42, -0.34, -0.17, -0.53, 0.83, -0.0, 0.28, 0.0, 0.0)

        // Kinds of evidence: a match of one token, of up to four, of more; the table's token at the text's end, and after it.
        const val ONE = 0
        const val SHORT = 1
        const val LONG = 2
        const val SAID = 3
        const val SAID_ON = 4
        const val SCORES = 16 // grades of a kind, the first for log-odds below -2.5, the last for those above 4.5
        const val LEAST = -3.0
        const val STEP = 0.5
        val PRIORS = DoubleArray(5 * SCORES) { 1 / (1 + exp(-(LEAST + STEP * (it % SCORES + 0.5)))) }

        const val NEVER = Double.NEGATIVE_INFINITY
        const val FOLLOWED = 7 // maximum tokens of a draft from the table
        const val TABLE_BELOW = 5 // the length of a match from which on the table is not asked

        fun pair(first: Int, then: Int): Long = (first * SPREAD xor then.toLong()) * SPREAD

        fun score(odds: Double): Int = ((odds - LEAST) / STEP).toInt().coerceIn(0, SCORES - 1)

        /**
         * The class of [same] of [seen] times with the same token: 0 for up to one time; 1 and 2 where all of two or more
         * were; 3 to 8 by the share (a half, a fifth, less) of several times or of one; 9 and 10 where none of up to three
         * or of more was.
         */
        fun agreement(seen: Int, same: Int): Int = when {
            seen < 2 -> 0
            same == 0 -> if (seen < 4) 9 else 10
            same >= seen -> if (seen == 2) 1 else 2
            else -> (if (2 * same >= seen) 3 else if (5 * same >= seen) 5 else 7) + (if (same == 1) 1 else 0)
        }

        /**
         * What the table says of a copied token: nothing, the same at a low, middle or high level, or another one at a low
         * or a higher level.
         */
        fun against(said: Int, token: Int): Int = when {
            said == NONE -> 0
            token(said) == token -> if (level(said) < 4) 1 else if (level(said) < 8) 2 else 3
            else -> if (level(said) < 4) 4 else 5
        }
    }
}
