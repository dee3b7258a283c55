package dev.edgelm.app

import dev.edgelm.app.latency.Chart
import dev.edgelm.app.latency.Series
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class ChartTest {
    @Test
    fun `ticks are round, begin at 0 and reach the highest value`() {
        assertEquals(listOf(0.0, 20.0, 40.0, 60.0, 80.0), Chart.ticks(68.9))
        assertEquals(listOf(0.0, 1.0, 2.0, 3.0, 4.0, 5.0), Chart.ticks(5.0))
        for (highest in listOf(0.013, 0.7, 3.0, 99.0, 101.0, 12345.0)) {
            val ticks = Chart.ticks(highest)
            assertTrue(ticks.last() >= highest && ticks.size in 2..7) { "$highest: $ticks" }
        }
    }

    @Test
    fun `places double from left to right`() {
        val chart = Chart("", "", listOf(Series("", listOf(1.0 to 5.0, 2.0 to 6.0, 4.0 to 10.0))))
        assertEquals(listOf(0.0, 0.5, 1.0), chart.xTicks.map(chart::x))
        assertEquals(1.0, chart.y(10.0))
        assertEquals(0.5, Chart("", "", listOf(Series("", listOf(16.0 to 5.0)))).x(16.0))
    }

    @Test
    fun `a profile has a chart of each thing that it measured`() {
        assertEquals(listOf("Tokens per second", "First token, in ms", "A step, in ms"), Chart.of(profile(3)).map { it.title })
        assertEquals(listOf("at 16", "at 128"), Chart.of(profile(2)).last().series.map { it.name })
        assertTrue(Chart.of(profile(3).copy(ttft = emptyList(), decode = emptyList(), curve = emptyList())).isEmpty())
    }
}
