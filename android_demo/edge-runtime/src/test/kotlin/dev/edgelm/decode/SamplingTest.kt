package dev.edgelm.decode

import dev.edgelm.InputException
import java.nio.FloatBuffer
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class SamplingTest {
    @Test
    fun `draws are those of numpy's default_rng`() {
        assertEquals(listOf(0.6369616873214543, 0.2697867137638703, 0.04097352393619469), draws(0))
        assertEquals(listOf(0.22733602246716966, 0.31675833970975287, 0.7973654573327341), draws(12345))
        assertEquals(listOf(0.30459713339238315, 0.47706570000004545, 0.27633395999228405), draws(0x7EDCBA9876543210))
    }

    private fun draws(seed: Long) = Pcg64(seed).let { random -> List(3) { random.nextDouble() } }

    private fun sampled(options: SamplingOptions, logits: FloatArray, times: Int = 400): Set<Int> {
        val sampler = Sampler(options, IntArray(0), logits.size)
        return (1..times).map { sampler.next(FloatBuffer.wrap(logits)) }.toSet()
    }

    @Test
    fun `top-k draws from the likeliest`() {
        val logits = FloatArray(300) { (it * 7 % 300) / 300f }
        val best = logits.indices.sortedByDescending { logits[it] }.take(5).toSet()
        assertEquals(best, sampled(SamplingOptions(1.0, topK = 5, seed = 1), logits))
    }

    @Test
    fun `top-p draws from the smallest set that reaches it`() {
        val logits = floatArrayOf(0.5f, 0.3f, 0.15f, 0.05f).map { kotlin.math.ln(it) }.toFloatArray()
        assertEquals(setOf(0, 1), sampled(SamplingOptions(1.0, topP = 0.79, seed = 1), logits))
        assertEquals(setOf(0, 1, 2), sampled(SamplingOptions(1.0, topP = 0.81, seed = 1), logits))
        val flat = FloatArray(1000) { it * 1e-6f }
        assertTrue(sampled(SamplingOptions(1.0, topP = 0.5, seed = 1), flat, 2000).all { it >= 499 })
    }

    @Test
    fun `min-p leaves out what is much less likely`() {
        val logits = floatArrayOf(0f, -1f, -3f)
        assertEquals(setOf(0, 1), sampled(SamplingOptions(1.0, minP = 0.1, seed = 1), logits))
    }

    @Test
    fun `the penalty makes tokens that were said less likely`() {
        val sampler = Sampler(SamplingOptions(repetitionPenalty = 2.0), intArrayOf(0), 3)
        val logits = floatArrayOf(3f, 2f, 1.4f)
        assertEquals(listOf(1, 0, 0), List(3) { sampler.next(FloatBuffer.wrap(logits)) })
    }

    @Test
    fun `options out of their range are refused`() {
        val wrong = listOf<() -> SamplingOptions>(
            { SamplingOptions(-1.0) }, { SamplingOptions(Double.NaN) }, { SamplingOptions(1.0, topK = -1) },
            { SamplingOptions(1.0, topP = 0.0) }, { SamplingOptions(1.0, minP = 2.0) }, { SamplingOptions(topK = 4) },
            { SamplingOptions(repetitionPenalty = 0.0) }, { SamplingOptions(1.0, seed = -1) },
        )
        for (make in wrong) assertThrows(InputException::class.java) { make() }
    }
}
