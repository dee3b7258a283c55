package dev.edgelm.decode.rules

import dev.edgelm.Corpus
import dev.edgelm.bundle.Generation
import dev.edgelm.bundle.Speech
import dev.edgelm.decode.Circling
import dev.edgelm.decode.Sampler
import dev.edgelm.decode.SamplingOptions
import dev.edgelm.decode.likeliest
import dev.edgelm.speech.Rules
import java.nio.FloatBuffer
import kotlin.math.abs
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNamingStrategy
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Each rule does what its lines say: `tests/android/rules_corpus.py`, which says what a line has. */
class RuleLinesTest {
    @Serializable
    private data class Options(
        val seed: Long,
        val temperature: Double = 0.0,
        val topK: Int = 0,
        val topP: Double = 1.0,
        val minP: Double = 0.0,
        val repetitionPenalty: Double? = null,
        val circles: String = "avoid",
        val noRepeatNgram: Int? = null,
        val minTokens: Int? = null,
    )

    @Serializable
    private data class Line(
        val rule: String,
        val options: Options,
        val bundle: Generation = Generation(),
        val speech: Speech? = null,
        val ends: List<Int>,
        val text: List<Int>,
        val begin: Int,
        val most: Int,
        val source: List<Int> = emptyList(),
        val last: Int? = null,
        val scores: List<Float>,
        val changed: List<Float?>,
        val left: List<Int>,
        val token: Int,
    )

    @OptIn(ExperimentalSerializationApi::class)
    private val json = Json { namingStrategy = JsonNamingStrategy.SnakeCase }
    private val lines = Corpus.get("rules.jsonl").readLines().map { json.decodeFromString<Line>(it) }

    private val Line.sampling: SamplingOptions
        get() = SamplingOptions(
            options.temperature, options.topK, options.topP, options.minP, options.repetitionPenalty, options.seed,
            Circling.valueOf(options.circles.uppercase()),
        )
    private val Line.settings: RuleSettings
        get() = RuleSettings(sampling, bundle, ends, begin, most, options.noRepeatNgram, options.minTokens)
    private val Line.isGreedy get() = options.temperature == 0.0

    private fun changed(line: Line): FloatArray {
        val scores = line.scores.toFloatArray()
        val text = line.text.toIntArray()
        for (rule in makeProcessors(line.settings)) rule.process(text, text.size, scores)
        val said = text.copyOfRange(line.begin, text.size)
        line.speech?.let { Rules(it, line.ends.single(), line.last).apply(scores, said, said.size) }
        if (line.isGreedy && line.sampling.circles == Circling.AVOID) {
            val circles = Circles(line.source.toIntArray())
            said.forEach(circles::push)
            for ((token, loss) in circles.losses) scores[token] -= loss
        }
        return scores
    }

    @Test
    fun `every rule changes scores as Python's does`() {
        assertTrue(lines.size > 50)
        for (line in lines) {
            val found = changed(line)
            for ((score, wanted) in found.asList() zip line.changed) {
                val right = if (wanted == null) score == FORBIDDEN else abs(score - wanted) <= 1e-5f * maxOf(1f, abs(wanted))
                assertTrue(right, "$score and not $wanted: $line")
            }
            assertEquals(found.size, line.changed.size)
        }
    }

    @Test
    fun `the same tokens are left, and the same one is taken or drawn`() {
        for (line in lines) {
            val scores = changed(line)
            if (line.isGreedy) {
                assertEquals(line.left, scores.indices.filter { scores[it] > FORBIDDEN }, "$line")
                assertEquals(line.token, likeliest(scores), "$line")
                continue
            }
            val left = Left(line.sampling, scores.size)
            left.weigh(scores, scores.max())
            assertEquals(line.left, (0 until left.size).filter { left.values[it] > 0 }.map { left.tokens[it] }, "$line")
            val sampler = Sampler(line.sampling, line.text.toIntArray(), scores.size, makeProcessors(line.settings))
            assertEquals(line.token, sampler.next(FloatBuffer.wrap(line.scores.toFloatArray())), "$line")
        }
    }
}
