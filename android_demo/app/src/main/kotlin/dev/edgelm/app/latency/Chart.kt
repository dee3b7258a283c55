package dev.edgelm.app.latency

import dev.edgelm.profile.Profile
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.log10
import kotlin.math.log2
import kotlin.math.pow

/** A line of a chart: points from left to right. */
data class Series(val name: String, val points: List<Pair<Double, Double>>)

/**
 * A chart without pixels. The x axis is logarithmic, because sizes and contexts double; the y axis begins at 0.
 *
 * @property xTicks the measured places.
 * @property yTicks round numbers up to [top].
 */
class Chart(val title: String, val xLabel: String, val series: List<Series>) {
    val xTicks: List<Double> = series.flatMap { line -> line.points.map { it.first } }.distinct().sorted()
    val yTicks: List<Double> = ticks(series.flatMap { line -> line.points.map { it.second } }.maxOrNull() ?: 1.0)
    val top: Double get() = yTicks.last()

    /** Where a value is between left (0) and right (1). */
    fun x(value: Double): Double {
        val low = log2(xTicks.first())
        val span = log2(xTicks.last()) - low
        return if (span == 0.0) 0.5 else (log2(value) - low) / span
    }

    /** Where a value is between bottom (0) and top (1). */
    fun y(value: Double): Double = value / top

    companion object {
        private const val MOST = 5 // lines across

        /** What a profile has to draw: tokens per second by context, and the cost of steps by their size. */
        fun of(profile: Profile): List<Chart> = listOf(
            Chart("Tokens per second", "tokens of context", listOf(Series("", profile.decode.map { it.context.toDouble() to it.tokensPerS }))),
            Chart("First token, in ms", "tokens of the prompt", listOf(Series("", profile.ttft.map { it.inputTokens.toDouble() to it.time.p50Ms }))),
            Chart(
                "A step, in ms", "tokens in the step",
                profile.curve.ifEmpty { profile.curveInt8 }.groupBy { it.context }.map { (context, steps) ->
                    Series("at $context", steps.map { it.size.toDouble() to it.ms })
                },
            ),
        ).filter { it.xTicks.isNotEmpty() }

        /** From 0 to at least [highest] in steps of 1, 2 or 5 times a power of ten. */
        fun ticks(highest: Double): List<Double> {
            val raw = highest / MOST
            val power = 10.0.pow(floor(log10(raw)))
            val step = power * listOf(1.0, 2.0, 5.0, 10.0).first { raw <= it * power * (1 + 1e-9) }
            return List(ceil(highest / step - 1e-9).toInt() + 1) { it * step }
        }
    }
}
