package dev.edgelm.profile

import kotlin.math.abs
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.max
import kotlin.math.min
import kotlin.math.sqrt

private const val Z95 = 1.96

/**
 * Statistics of times in milliseconds, one or more, in the order in which they were measured. The interval of the median
 * is that of order statistics, as Python's `edge.runtime.profile.measure` has it.
 */
internal fun summarize(times: List<Double>): Stats {
    val ordered = times.sorted()
    val n = ordered.size
    val spread = Z95 * sqrt(n.toDouble())
    val low = max(1, floor((n - spread) / 2).toInt())
    val high = min(n, ceil(1 + (n + spread) / 2).toInt())
    return Stats(
        count = n,
        p50Ms = percentile(ordered, 0.5),
        p90Ms = percentile(ordered, 0.9),
        p99Ms = percentile(ordered, 0.99),
        minMs = ordered[0],
        jitterMs = if (n < 2) 0.0 else times.zipWithNext { a, b -> abs(b - a) }.average(),
        lowMs = ordered[low - 1],
        highMs = ordered[high - 1],
    )
}

/** On a straight line between the two values next to it, as numpy has it. */
private fun percentile(ordered: List<Double>, share: Double): Double {
    val at = share * (ordered.size - 1)
    val low = ordered[at.toInt()]
    val high = ordered[min(at.toInt() + 1, ordered.size - 1)]
    return low + (high - low) * (at - at.toInt())
}
