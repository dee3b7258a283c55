package dev.edgelm.speculate

/**
 * How much of a draft to verify: as much as brings the most tokens for the time, which is often nothing. A step of S tokens
 * brings the accepted tokens of the draft and one more.
 *
 * Decisions and constants are those of Python's `edge.runtime.speculate.planner`, where they were measured.
 *
 * [priors]: what is believed of the drafter's grades. [width]: maximum tokens of a step, with the one before the draft.
 */
internal class Planner(priors: DoubleArray, val costs: StepCosts, private val width: Int) {
    // Drafts are accepted less often where tokens are drawn at random: what is learnt of those is kept apart.
    private val likeliest = Acceptance(priors)
    private val random = Acceptance(DoubleArray(priors.size) { DRAWN * priors[it] })
    private var acceptance = likeliest
    private var cost = 0.0 // of drafting a token, in plain steps
    private var draftSeconds = 0.0 // of drafting a token, followed
    private var mean = 0.5 // chance of a drafted token, whatever its grade
    private var plainRounds = 0
    private var risk = RISK
    private var said = 0 // tokens of this answer
    private var ahead = 0.0 // of plain decoding, in plain steps
    private var ran = 0 // tokens of the draft that is being run

    /** The least chance of acceptance, with its whole path, of a token that can pay: set by [budget]. */
    var minChance = 0.0
        private set

    /** An answer begins, whose tokens are [drawn] at random or the likeliest ones. */
    fun begin(drawn: Boolean) {
        acceptance = if (drawn) random else likeliest
        acceptance.begin()
        costs.begin()
        risk = if (drawn) DRAWN_RISK else RISK
        said = 0
        ahead = 0.0
        ran = 0
        if (draftSeconds > 0 && costs.plain > 0) cost = draftSeconds / costs.plain
    }

    /** How many tokens to ask the drafter for, where [most] have room at this [context]; 0 where asking would not pay. */
    fun budget(most: Int, context: Int): Int {
        costs.at(context)
        ran = 0
        var tokens = minOf(most, width - 1)
        if (cost <= COSTLY) {
            minChance = costs.slope / 2 // by half: what is learnt may be more than the drafter knows
            return tokens
        }
        minChance = costs.slope + cost
        while (tokens > 0 && costs.ratios[tokens + 1] - 1 + cost * tokens > left()) tokens--
        plainRounds++
        if (plainRounds > EXPLORE && tokens > 0) {
            plainRounds = 0
            return minOf(tokens, 2)
        }
        val length = bestLength(tokens, cost) { mean }
        if (length > 0) plainRounds = 0
        return length
    }

    /** Plain steps that the answer can still lose. */
    private fun left() = ahead + STAKE + risk * said

    /** Drafting [tokens] tokens took so long. An empty draft costs nothing that asking less could save. */
    fun drafted(tokens: Int, seconds: Double) {
        if (tokens == 0) return
        val each = seconds / tokens
        draftSeconds = follow(if (draftSeconds == 0.0) each else draftSeconds, each)
    }

    /** How many of the first [size] tokens of a draft to run: those that bring the most tokens per time. */
    fun cut(draft: Draft, size: Int): Int {
        var length = bestLength(minOf(size, width - 1)) { acceptance.chances[draft.grades[it]] }
        // As many as an answer can lose without becoming too slow.
        val limit = 1 + left()
        while (length > 0 && costs.ratios[length + 1] > limit) length--
        ran = length
        return length
    }

    /** The text went on with the first [count] of [sampled], after all of [draft] was proposed, what was cut as well. */
    fun observe(draft: Draft, sampled: IntArray, count: Int) {
        said += count
        ahead += count - costs.ratios[ran + 1] - OVERHEAD
        if (cost > COSTLY) ahead -= cost * draft.size // what a cheap drafter takes, it takes whatever is run of its drafts
        for (i in 0 until minOf(count, draft.size)) {
            val right = draft.tokens[i] == sampled[i]
            acceptance.observe(draft.grades[i], right)
            mean += 0.03 * ((if (right) 1.0 else 0.0) - mean)
            if (!right) return
        }
    }

    /**
     * How many of [count] tokens bring the most tokens per time; 0 where a plain step does. [chance]: of a token that it is
     * accepted where the one before is. [drafting]: cost of each, in plain steps.
     */
    private inline fun bestLength(count: Int, drafting: Double = 0.0, chance: (Int) -> Double): Int {
        var best = 0
        var bestRate = GAIN
        var expected = 1.0
        var accepted = 1.0
        for (length in 1..count) {
            accepted *= chance(length - 1)
            expected += accepted
            val rate = expected / (costs.ratios[length + 1] + drafting * length)
            if (rate > bestRate) {
                best = length
                bestRate = rate
            } else if (accepted < HOPELESS) {
                break
            }
        }
        return best
    }

    private companion object {
        const val GAIN = 1.1 // by how much a draft must be expected to beat a plain step
        const val HOPELESS = 0.02 // chance that all of a draft is accepted below which no longer one is looked at
        const val DRAWN = 0.65 // of the chance that a draft is accepted, where tokens are drawn at random
        const val COSTLY = 0.03 // of a plain step for each token: a drafter that takes longer is asked less often
        const val EXPLORE = 48 // plain rounds after which a costly drafter is tried again

        // What an answer may have lost after a draft of which nothing is accepted, with what drafting took: a share of its
        // tokens, and a first draft of one token.
        const val RISK = 0.04
        const val DRAWN_RISK = 0.02
        const val STAKE = 0.3 // plain steps
        const val OVERHEAD = 0.01 // plain steps that asking, planning and learning take in each round
    }
}
