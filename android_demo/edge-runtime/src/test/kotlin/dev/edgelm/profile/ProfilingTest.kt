package dev.edgelm.profile

import dev.edgelm.Corpus
import dev.edgelm.EdgeException
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.GenerateOptions
import dev.edgelm.InputException
import dev.edgelm.Kv
import java.io.File
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

private val DEVICE = DeviceName("a test", "a processor", "JVM", 8_000_000_000)
private val SHORT = ProfileOptions(secondsPerRow = 0.01)

class ProfilingTest {
    private fun open(options: EdgeOptions = EdgeOptions()) = EdgeModel.open(Corpus.decoders().first(), options)

    private fun EdgeModel.whole(options: ProfileOptions = SHORT) = runBlocking { profile(DEVICE, options).toList() }

    @Test
    fun `a profile grows by a figure at a time and reads back`() {
        open(EdgeOptions(kv = Kv.FLOAT32)).use { model ->
            val profiles = model.whole()
            val last = profiles.last()
            val contexts = last.decode.map { it.context }
            assertEquals(3 * contexts.size, profiles.size)
            assertEquals(contexts, last.ttft.map { it.inputTokens })
            assertEquals(listOf(1, 2, 4, 8), last.curve.filter { it.context == contexts[0] }.map { it.size })
            assertTrue(last.curve.all { it.lowMs <= it.ms && it.ms <= it.highMs && it.count >= 3 })
            assertTrue(last.memory!!.peakBytes!! >= last.memory.steadyBytes!!)
            assertEquals(last, Profile.fromJson(last.toJson()))
            // For tests/android, which reads it as `edge profile` does.
            File("target/profile.json").writeText(last.toJson())
        }
    }

    @Test
    fun `a profile over int8 keys has their curve`() {
        open(EdgeOptions(kv = Kv.INT8)).use { model ->
            val last = model.whole().last()
            assertTrue(last.curve.isEmpty() && last.curveInt8.isNotEmpty())
        }
    }

    @Test
    fun `a context that is too short for the usual lengths is measured at its middle`() {
        open(EdgeOptions(context = 40)).use { model -> assertEquals(listOf(20), model.whole().last().decode.map { it.context }) }
    }

    @Test
    fun `measuring that is cancelled leaves the model usable, and one that is closed ends it`() {
        val model = open()
        runBlocking { model.profile(DEVICE, SHORT).take(1).toList() }
        assertTrue(runBlocking { model.generate("Hello", GenerateOptions(2)).toList() }.isNotEmpty())
        val error = assertThrows(EdgeException::class.java) {
            runBlocking { model.profile(DEVICE, SHORT).collect { model.close() } }
        }
        assertEquals("The model was closed.", error.message)
    }

    @Test
    fun `options that measure nothing are refused`() {
        assertThrows(InputException::class.java) { ProfileOptions(contexts = emptyList()) }
        assertThrows(InputException::class.java) { ProfileOptions(sizes = listOf(2, 4)) }
    }
}
