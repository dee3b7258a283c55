package dev.edgelm.decode.rules

import dev.edgelm.decode.SamplingOptions
import kotlin.math.exp

/** The tokens of a vocabulary that one is drawn from, in the order of their ids: first their logits, then weights. */
internal class Left(options: SamplingOptions, vocab: Int) {
    private val byLogit = logitThresholds(RuleSettings(options))
    private val byWeight = weightThresholds(RuleSettings(options))
    private val temperature = maxOf(options.temperature.toFloat(), java.lang.Float.MIN_NORMAL)
    val tokens = IntArray(vocab)
    val values = FloatArray(vocab)
    var size = 0
        private set
    private val scratch = FloatArray(vocab)

    /** What rules leave of all tokens, with unnormalised probabilities. [most]: the largest of the logits. */
    fun weigh(logits: FloatArray, most: Float) {
        logits.copyInto(values)
        for (token in logits.indices) tokens[token] = token
        size = logits.size
        for (rule in byLogit) keep(rule.least(this))
        for (i in 0 until size) values[i] = exp(((values[i] - most) / temperature).toDouble()).toFloat()
        var least = 0f
        for (rule in byWeight) least = maxOf(least, rule.least(this))
        if (least > 0) keep(least)
    }

    /** Leave out those whose value is below [least]. */
    private fun keep(least: Float) {
        var kept = 0
        for (i in 0 until size) {
            if (values[i] >= least) {
                values[kept] = values[i]
                tokens[kept++] = tokens[i]
            }
        }
        size = kept
    }

    /** A token with a probability proportional to its weight, from a number in [0, 1). */
    fun drawn(uniform: Double): Int {
        var total = 0.0
        for (i in 0 until size) total += values[i]
        val point = uniform * total
        var reached = 0.0
        for (i in 0 until size) {
            reached += values[i]
            if (reached > point) return tokens[i]
        }
        return tokens[size - 1]
    }

    /** The [count] largest values, the smallest first; overwritten by the next call. */
    fun sorted(count: Int): FloatArray {
        val least = largest(count)
        var found = 0
        for (i in 0 until size) if (values[i] > least) scratch[found++] = values[i]
        while (found < count) scratch[found++] = least
        scratch.sort(0, count)
        return scratch
    }

    /** The [k]-th largest value: a selection, not a sort. */
    fun largest(k: Int): Float {
        System.arraycopy(values, 0, scratch, 0, size)
        var low = 0
        var high = size - 1
        val wanted = size - k
        while (low < high) {
            val pivot = scratch[(low + high) ushr 1]
            var i = low
            var j = high
            while (i <= j) {
                while (scratch[i] < pivot) i++
                while (scratch[j] > pivot) j--
                if (i <= j) {
                    val moved = scratch[i]
                    scratch[i++] = scratch[j]
                    scratch[j--] = moved
                }
            }
            if (wanted <= j) high = j else if (wanted >= i) low = i else break
        }
        return scratch[wanted]
    }
}
