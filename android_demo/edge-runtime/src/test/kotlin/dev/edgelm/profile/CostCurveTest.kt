package dev.edgelm.profile

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

class CostCurveTest {
    private fun curve(vararg points: Triple<Int, Int, Double>) =
        CostCurve(points.map { (size, context, ms) -> StepCost(size, context, ms, ms, ms, 3) })

    @Test
    fun `a cost is linear between the points and goes on after the last ones`() {
        val curve = curve(
            Triple(1, 100, 10.0), Triple(2, 100, 12.0), Triple(4, 100, 20.0), Triple(1, 200, 12.0), Triple(4, 200, 30.0),
        )
        assertEquals(10.0, curve.ms(1, 100))
        assertEquals(16.0, curve.ms(3, 100))
        assertEquals(28.0, curve.ms(6, 100))
        assertEquals(10.0, curve.ms(1, 0)) // not cheaper than at the first context
        assertEquals(25.0, curve.ms(4, 150))
        assertEquals(40.0, curve.ms(4, 300))
        assertEquals(20.0, curve.ms(3, 150))
    }

    @Test
    fun `a cost does not fall, and one point counts in proportion`() {
        assertEquals(8.0, curve(Triple(1, 10, 9.0), Triple(2, 10, 8.0)).ms(4, 10))
        assertEquals(30.0, curve(Triple(2, 10, 20.0)).ms(3, 500))
        assertEquals(20.0, curve(Triple(2, 10, 20.0)).ms(1, 10))
    }
}
