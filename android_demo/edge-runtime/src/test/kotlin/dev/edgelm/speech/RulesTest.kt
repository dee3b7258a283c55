package dev.edgelm.speech

import dev.edgelm.bundle.Speech
import kotlin.math.roundToInt
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** The rules of a transcription, without a model. */
class RulesTest {
    private val speech = Speech(
        sampleRate = RATE, windowSamples = 30 * RATE, start = 11, noTimestamps = 12, timestampBegin = ZERO,
        suppress = listOf(9), beginSuppress = listOf(3, END),
    )

    private fun at(seconds: Double) = ZERO + (seconds * 50).roundToInt()

    /** What may follow [text] where one token has this score, and all others 0. */
    private fun allowed(vararg text: Int, last: Int? = null, likeliest: Int = 1, score: Float = 20f): List<Int> {
        val scores = FloatArray(ZERO + 1501)
        scores[likeliest] = score
        Rules(speech, END, last).apply(scores, text, text.size)
        return scores.indices.filter { scores[it] > Float.NEGATIVE_INFINITY }
    }

    private val words = (0 until ZERO) - setOf(9, 12)

    @Test
    fun `a text begins with a timestamp of the first second`() =
        assertEquals((at(0.0)..at(1.0)).toList(), allowed())

    @Test
    fun `words follow the timestamp that opens a segment`() {
        assertEquals(words, allowed(at(0.0)))
        assertEquals(words, allowed(at(0.0), 1, at(1.0), at(1.0)))
    }

    @Test
    fun `a timestamp that is not earlier, or the end, follows the one that closes a segment`() {
        assertEquals(listOf(END, 11) + (at(2.0)..at(30.0)), allowed(at(0.0), 1, at(2.0), likeliest = END))
    }

    @Test
    fun `timestamps that are likelier together than any word are taken`() {
        assertEquals((at(0.5) + 1..at(30.0)).toList(), allowed(at(0.5), 1, score = 7f)) // ln(1475) is 7.3
        assertTrue(1 in allowed(at(0.5), 1, score = 8f))
    }

    @Test
    fun `nothing begins after the end of a sound`() {
        // What the model gives to later times is given to the end: together they are likelier than the word.
        assertEquals((at(0.5) + 1..at(2.0)).toList(), allowed(at(0.5), 1, last = 100, score = 6f))
        assertEquals(ZERO + 94, allowed(at(0.0), 1, at(1.0), last = 100).last())
    }

    private fun spans(vararg tokens: Int, window: Int = 30 * RATE): Pair<List<Pair<Double, Double>>, Double> {
        val (spans, heard) = split(tokens.toList(), speech, window)
        return Pair(spans.map { Pair(it.start / RATE.toDouble(), it.end / RATE.toDouble()) }, heard / RATE.toDouble())
    }

    @Test
    fun `a pair of timestamps cuts, and what follows the last pair is heard again`() {
        val cut = intArrayOf(at(0.0), 1, at(2.0), at(2.0), 2, at(4.0), at(4.0), 3)
        assertEquals(Pair(listOf(0.0 to 2.0, 2.0 to 4.0), 4.0), spans(*cut))
        assertEquals(Pair(listOf(0.0 to 2.0, 2.0 to 4.0), 30.0), spans(at(0.0), 1, at(2.0), at(2.0), 2, at(4.0)))
    }

    @Test
    fun `without a timestamp that ends it a text fills the window`() {
        assertEquals(Pair(listOf(0.0 to 30.0), 30.0), spans(at(0.0), 1, 2))
        assertEquals(Pair(listOf(0.0 to 3.0), 5.0), spans(at(0.0), 1, at(3.0), window = 5 * RATE))
        assertEquals(Pair(listOf(0.0 to 30.0), 30.0), spans())
    }

    @Test
    fun `a short sound is heard with silence and in whole seconds`() {
        assertEquals(5 * RATE, encoderWindow(2 * RATE, speech))
        assertEquals(6 * RATE, encoderWindow(2 * RATE + 1, speech))
        assertEquals(30 * RATE, encoderWindow(29 * RATE, speech))
    }

    @Test
    fun `a text that says something twice in a row repeats`() {
        for (text in listOf("Thank you. Thank you!", "and then and then", "die STRASSE, die Straße", "I say ½½½½½½½½½½½½")) {
            assertTrue(repeats(text), text)
        }
        for (text in listOf("", "no no", "Bye bye.", "It was the best of times, it was the worst of times.")) {
            assertFalse(repeats(text), text)
        }
    }

    @Test
    fun `silence is skipped up to shortly before a sound, and a long gap ends a window`() {
        fun sound(vararg parts: Pair<Double, Float>): FloatArray = parts.fold(FloatArray(0)) { all, (seconds, level) ->
            all + FloatArray((seconds * RATE).toInt()) { level }
        }

        fun skipped(samples: FloatArray) = silenceToSkip(samples, samples.size, RATE, 320)
        assertEquals(0, skipped(sound(0.9 to 0f, 1.0 to 0.1f)))
        assertEquals((1.8 * RATE).toInt(), skipped(sound(2.0 to 0.0003f, 1.0 to 0.1f)))
        assertEquals(2 * RATE, skipped(sound(2.0 to 0f)))

        fun kept(samples: FloatArray) = soundBeforeGap(samples, samples.size, RATE, 320)
        assertEquals((2.2 * RATE).toInt(), kept(sound(2.0 to 0.1f, 5.1 to 0f, 1.0 to 0.1f)))
        assertEquals((2.2 * RATE).toInt(), kept(sound(2.0 to 0.1f, 5.1 to 0f)))
        val short = sound(2.0 to 0.1f, 4.9 to 0f, 1.0 to 0.1f)
        assertEquals(short.size, kept(short))
        val early = sound(0.5 to 0.1f, 6.1 to 0f) // too little before it
        assertEquals(early.size, kept(early))
    }

    private companion object {
        const val RATE = 16_000
        const val END = 10
        const val ZERO = 13 // after words, the end, two special tokens
    }
}
