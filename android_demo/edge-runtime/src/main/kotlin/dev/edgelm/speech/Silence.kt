package dev.edgelm.speech

import kotlin.math.abs

private const val SILENT = 3.1622776e-4f // no sample reaches -70 dB of full scale: nothing was recorded
private const val LONG_SILENCE_S = 1 // shorter ones are left to the model
private const val MARGIN_S = 0.2 // of silence is kept before and after a sound
private const val GAP_S = 5 // a silence so long ends a window: a shorter one costs less than another window

/**
 * How many of the first [count] samples are silence to leave out: a multiple of [step], 0 where a sound comes soon, all
 * where none comes.
 */
internal fun silenceToSkip(samples: FloatArray, count: Int, rate: Int, step: Int): Int {
    val first = (0 until count).firstOrNull { abs(samples[it]) >= SILENT } ?: return count
    if (first < LONG_SILENCE_S * rate) return 0
    return (first - MARGIN_S * rate).toInt() / step * step
}

/**
 * How many of the first [count] samples come before a long silence, a multiple of [step]; all where there is none, or
 * too little before it.
 */
internal fun soundBeforeGap(samples: FloatArray, count: Int, rate: Int, step: Int): Int {
    val frames = count / step
    var last = -1 // frame with a sound
    for (frame in 0..frames) {
        val loud = frame == frames || (frame * step until (frame + 1) * step).any { abs(samples[it]) >= SILENT }
        if (!loud) continue
        if (last >= 0 && frame - last > GAP_S * rate.toDouble() / step) {
            val end = (last + 1) * step + (MARGIN_S * rate).toInt() / step * step
            return if (end >= LONG_SILENCE_S * rate) end else count
        }
        last = frame
    }
    return count
}
