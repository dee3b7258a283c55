package dev.edgelm.speech

import dev.edgelm.BundleException
import dev.edgelm.Corpus
import dev.edgelm.assertFlat
import dev.edgelm.EdgeException
import dev.edgelm.EdgeOptions
import dev.edgelm.EdgeTranscriber
import dev.edgelm.InputException
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.roundToInt
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory

/** What `edge verify --emit` heard is heard here alike, and a transcriber is used as an app uses it, and harmed. */
class TranscriberTest {
    @Serializable
    data class Said(
        val start: Double,
        val end: Double,
        val text: String,
        val tokens: List<Int>,
        @SerialName("avg_logprob") val avgLogprob: Double,
        @SerialName("compression_ratio") val compressionRatio: Double,
        @SerialName("no_speech_prob") val noSpeechProb: Double?,
        val temperature: Double,
    )

    @Serializable
    data class Heard(val sound: String, val options: JsonObject, val segments: List<Said>)

    private val source: File get() = Corpus.speakers().first()

    private fun folder(bundle: File) = Corpus.get("answers/${bundle.nameWithoutExtension}")

    private fun lines(bundle: File, name: String): List<Heard> = File(folder(bundle), name).readLines()
        .filter { it.isNotEmpty() }.map { Json.decodeFromString(Heard.serializer(), it) }

    private fun sound(bundle: File, name: String): FloatArray {
        val floats = ByteBuffer.wrap(File(folder(bundle), name).readBytes()).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return FloatArray(floats.remaining()).also { floats.get(it) }
    }

    private fun all(segments: Flow<Segment>) = runBlocking { segments.toList() }

    private fun JsonObject.options(): TranscribeOptions = entries.fold(TranscribeOptions()) { made, (name, value) ->
        fun threshold() = if (value is JsonNull) null else value.jsonPrimitive.double
        when (name) {
            "language" -> made.copy(language = value.jsonPrimitive.content)
            "task" -> made.copy(task = Task.valueOf(value.jsonPrimitive.content.uppercase()))
            "temperatures" -> made.copy(temperatures = value.jsonArray.map { it.jsonPrimitive.double })
            "beams" -> made.copy(beams = value.jsonPrimitive.int)
            "compression_ratio_threshold" -> made.copy(compressionRatioThreshold = threshold())
            "logprob_threshold" -> made.copy(logprobThreshold = threshold())
            "no_speech_threshold" -> made.copy(noSpeechThreshold = threshold())
            "previous_text" -> made.copy(previousText = value.jsonPrimitive.boolean)
            "skip_silence" -> made.copy(skipSilence = value.jsonPrimitive.boolean)
            "seed" -> made.copy(seed = value.jsonPrimitive.long)
            else -> throw AssertionError("the corpus has an option that is not known here: $name")
        }
    }

    private fun compare(wanted: List<Said>, found: List<Segment>, what: String) {
        assertEquals(wanted.map { it.tokens }, found.map { it.tokens }, what)
        for ((python, own) in wanted.zip(found)) {
            assertEquals(python.text, own.text, what)
            assertEquals(python.start, own.startSeconds, what)
            assertEquals(python.end, own.endSeconds, what)
            assertEquals(python.temperature, own.temperature, what)
            assertEquals(python.compressionRatio, own.compressionRatio, 1e-9, what)
            assertEquals(python.avgLogprob, own.avgLogprob, NEAR, what)
            assertEquals(python.noSpeechProb ?: -1.0, own.noSpeechProb ?: -1.0, NEAR, what)
        }
    }

    private fun compare(bundle: File, lines: List<Heard>) = EdgeTranscriber.open(bundle).use { model ->
        for (line in lines) {
            val found = all(model.transcribe(sound(bundle, line.sound), line.options.options()))
            compare(line.segments, found, "${line.sound} with ${line.options}")
        }
    }

    @TestFactory
    fun `segments are Python's`(): List<DynamicTest> = Corpus.speakers().map { path ->
        val lines = lines(path, "speech.jsonl")
        dynamicTest("${path.name}, ${lines.size} transcriptions") {
            assertTrue(lines.sumOf { it.segments.size } > lines.size) { "the corpus has hardly a segment" }
            compare(path, lines)
        }
    }

    @TestFactory
    fun `noise has a text where Python gives it one`(): List<DynamicTest> = Corpus.speakers().map { path ->
        val lines = lines(path, "noise.jsonl")
        dynamicTest("${path.name}, ${lines.size} kinds") {
            assertTrue(lines.size >= 20 && lines.any { it.segments.isEmpty() }) { "the corpus has hardly any noise" }
            compare(path, lines)
        }
    }

    @Test
    fun `samples of 16 bits are heard as their floats`() {
        EdgeTranscriber.open(source).use { model ->
            val floats = sound(source, "long.pcm")
            val shorts = ShortArray(floats.size) { (floats[it] * 20_000).roundToInt().toShort() }
            val heard = all(model.transcribe(shorts))
            assertTrue(heard.isNotEmpty())
            assertEquals(all(model.transcribe(FloatArray(shorts.size) { shorts[it] / 32768f })), heard)
            val mapped = ByteBuffer.allocateDirect(2 * shorts.size).order(ByteOrder.LITTLE_ENDIAN).asShortBuffer().put(shorts)
            assertEquals(heard, all(model.transcribe(mapped.apply { flip() })))
        }
    }

    @Test
    fun `sounds heard at once by several threads are those heard alone`() {
        EdgeTranscriber.open(source).use { model ->
            val sounds = listOf("command.pcm", "long.pcm", "gap.pcm", "command.pcm").map { sound(source, it) }
            val alone = sounds.map { all(model.transcribe(it)) }
            val together = runBlocking { sounds.map { async { model.transcribe(it).toList() } }.awaitAll() }
            assertEquals(alone, together)
            model.trim()
            assertEquals(alone[0], all(model.transcribe(sounds[0])))
        }
    }

    @Test
    fun `a transcription that is cancelled leaves the model usable`() {
        EdgeTranscriber.open(source).use { model ->
            val long = sound(source, "long.pcm")
            val whole = all(model.transcribe(long))
            assertTrue(whole.size > 1)
            assertEquals(whole.take(1), all(model.transcribe(long).take(1)))
            assertEquals(whole, all(model.transcribe(long)))
        }
    }

    @Test
    fun `closing in the middle ends it with a sentence`() {
        val model = EdgeTranscriber.open(source)
        val long = sound(source, "long.pcm")
        val hours = FloatArray(20 * long.size) { long[it % long.size] }
        val error = assertThrows(EdgeException::class.java) {
            runBlocking { model.transcribe(hours).collect { model.close() } }
        }
        assertEquals("The model was closed.", error.message)
        model.close()
        assertEquals("The model was closed.", assertThrows(EdgeException::class.java) { all(model.transcribe(long)) }.message)
    }

    private fun refused(vararg words: String, action: () -> Unit) {
        val error = assertThrows(InputException::class.java) { action() }
        for (word in words) assertTrue(word in error.message!!) { "'$word' is not in: ${error.message}" }
    }

    @Test
    fun `what cannot be heard is told`() {
        EdgeTranscriber.open(source).use { model ->
            assertEquals(emptyList<Segment>(), all(model.transcribe(FloatArray(0))))
            refused("44100", "16000") { all(model.transcribe(FloatArray(1000), sampleRate = 44_100)) }
            refused("0.1 s") { all(model.transcribe(FloatArray(800) { 0.1f })) }
            val command = sound(source, "command.pcm")
            for (bad in listOf(Float.NaN, Float.POSITIVE_INFINITY, 1e10f)) {
                refused("sample 1,234", "0.08 s", "$bad") { all(model.transcribe(command.copyOf().also { it[1234] = bad })) }
            }
            refused("'xx'", "it knows ${model.languages.first()}") { all(model.transcribe(command, TranscribeOptions("xx"))) }
        }
        refused("no temperature") { TranscribeOptions(temperatures = emptyList()) }
        refused("temperature must be 0 or more") { TranscribeOptions(temperatures = listOf(-1.0)) }
        refused("1 or more, not 0") { TranscribeOptions(beams = 0) }
        refused("3 beams are for temperature 0") { TranscribeOptions(temperatures = listOf(0.4), beams = 3) }
    }

    @Test
    fun `a bundle that hears nothing, or does not fit, is refused`() {
        refused("leave out the context") { EdgeTranscriber.open(source, EdgeOptions(context = 8)) }
        refused("needs", "MB are allowed") { EdgeTranscriber.open(source, EdgeOptions(memory = 500_000)) }
        refused("number of beams must be 1 or more") { EdgeTranscriber.open(source, EdgeOptions(beams = 0)) }
        val bytes = EdgeTranscriber.open(source).use { it.plan.bytes }
        EdgeTranscriber.open(source, EdgeOptions(memory = bytes)).use { model ->
            refused("planned for 1 beams, not for 2") { all(model.transcribe(FloatArray(16_000), TranscribeOptions(beams = 2))) }
        }
        refused("needs", "MB are allowed") { EdgeTranscriber.open(source, EdgeOptions(memory = bytes, beams = 2)) }
        for (path in Corpus.decoders().take(1)) {
            val error = assertThrows(BundleException::class.java) { EdgeTranscriber.open(path) }
            assertTrue("reads text" in error.message!!, error.message)
        }
    }

    @Test
    fun `many transcriptions leave memory flat`() {
        EdgeTranscriber.open(source).use { model ->
            val command = sound(source, "command.pcm")
            val once = TranscribeOptions(temperatures = listOf(0.0))
            fun hear(count: Int) = repeat(count) { all(model.transcribe(command, once)) }
            assertFlat(32_000, { hear(20) }, { hear(100) })
        }
    }

    private companion object {
        const val NEAR = 1e-4 // Python sums in float32
    }
}
