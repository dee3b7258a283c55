package dev.edgelm.profile

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

class StatsTest {
    @Test
    fun `statistics are those of Python's profile`() {
        // edge.runtime.profile.measure.summarize of the same times
        val stats = summarize(listOf(3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 6.0, 8.0, 7.0, 10.0))
        assertEquals(Stats(10, 5.5, 9.1, 9.91, 1.0, 2.3333333333333335, 1.0, 10.0), stats.copy(p99Ms = 9.91))
        assertEquals(9.91, stats.p99Ms, 1e-9)
    }

    @Test
    fun `one time is its own median`() {
        assertEquals(Stats(1, 2.5, 2.5, 2.5, 2.5, 0.0, 2.5, 2.5), summarize(listOf(2.5)))
    }
}
