package dev.edgelm.speculate

import dev.edgelm.profile.CostCurve
import kotlin.math.abs

/** [known], moved towards what was [measured] by no more than a share: the machine has other things to do at times. */
internal fun follow(known: Double, measured: Double, share: Double = FOLLOWED): Double =
    minOf(maxOf(measured, known / (1 + share)), known * (1 + share))

private const val FOLLOWED = 0.05

/**
 * What steps of up to [width] tokens cost, in plain steps: from the device's cost [curve] or a guess, and from the steps
 * that are run, which run a multiple of [multiple] tokens.
 *
 * What was measured during an answer counts from the next one on, so that the first answer of a process is always cut
 * into the same drafts.
 */
internal class StepCosts(private val curve: CostCurve?, private val width: Int, multiple: Int = 1) {
    private val sizes = IntArray(width) { (it + multiple) / multiple * multiple }
    private val believed = DoubleArray(width + 1) // by size

    // What steps cost more than is believed, by size: of those that were run, in plain steps, and of others by a factor.
    private val off = DoubleArray(width + 1) { Double.NaN }
    private val counted = DoubleArray(width + 1)
    private var steepness = 1.0
    private var countedSteepness = 1.0
    private val times = IntArray(width + 1) // that each size was run, and at 0 all of them
    private var readAt = 0
    private var refresh = 0

    /** Seconds of a plain step, followed; 0 before there was one. */
    var plain = 0.0
        private set

    /** What a step of a size costs. */
    val ratios = DoubleArray(width + 1)

    /** What each further token costs. */
    var slope = 0.0
        private set

    /** An answer begins. */
    fun begin() {
        off.copyInto(counted)
        countedSteepness = steepness
        readAt = 0
        refresh = 0
        at(0)
    }

    /** Steps are run at about this context. */
    fun at(context: Int) {
        if (abs(context - readAt) < refresh) return
        refresh = maxOf(REFRESH, context / 8)
        readAt = context
        val one = cost(sizes[0], context)
        for (size in 1..width) {
            believed[size] = cost(sizes[size - 1], context) / one
            ratios[size] = found(size, counted)
        }
        for (size in width - 1 downTo 2) ratios[size] = minOf(ratios[size], ratios[size + 1]) // never cheaper than shorter
        slope = (ratios[width] - 1) / (width - 1)
    }

    private fun cost(size: Int, context: Int) = curve?.ms(size, context) ?: (1 + GUESSED_SLOPE * (size - 1))

    /** A step of [size] tokens took so long. */
    fun took(size: Int, seconds: Double) {
        if (size == 1) {
            plain = follow(if (plain == 0.0) seconds else plain, seconds)
        } else if (plain > 0) {
            val ratio = seconds / plain
            val known = believed[size]
            off[size] = follow(found(size, off), ratio, moved(size)) - known
            if (known > 1) {
                val steeper = follow(1 + (known - 1) * steepness, ratio, moved(0))
                steepness = maxOf(0.05, (steeper - 1) / (known - 1))
            }
        }
    }

    /** What a step of this size costs, by what it was found to differ from what is believed. */
    private fun found(size: Int, off: DoubleArray): Double {
        val known = believed[size]
        return maxOf(1.0, known + if (off[size].isNaN()) (known - 1) * (countedSteepness - 1) else off[size])
    }

    /** How far one more step of this size moves what is known of it: less the more often such a step was run. */
    private fun moved(size: Int): Double {
        times[size]++
        return maxOf(SETTLED, FOLLOWED / (1 + times[size].toDouble() / SETTLING))
    }

    private companion object {
        const val GUESSED_SLOPE = 0.22 // of one more token in a step, in plain steps, before it was measured
        const val REFRESH = 64 // tokens after which the curve is read anew, or an eighth of the context
        const val SETTLED = 0.006
        const val SETTLING = 12 // steps after which it moves half as far
    }
}
