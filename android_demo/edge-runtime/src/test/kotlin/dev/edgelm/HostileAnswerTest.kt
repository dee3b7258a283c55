package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.check.FormCase
import dev.edgelm.check.Golden
import dev.edgelm.check.GoldenCase
import dev.edgelm.check.GoldenForm
import dev.edgelm.check.TopLogits
import dev.edgelm.decode.Sampler
import dev.edgelm.decode.SamplingOptions
import dev.edgelm.decode.likeliest
import dev.edgelm.decode.logSoftmax
import java.io.File
import java.io.RandomAccessFile
import java.nio.FloatBuffer
import java.nio.file.Path
import kotlin.random.Random
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** What a model or a caller does that no answer can be made of: a sentence. */
class HostileAnswerTest {
    @TempDir
    lateinit var folder: Path

    private val source: File get() = Corpus.decoders().first { Bundle.open(it).manifest.context >= 512 }

    private inline fun <reified T : EdgeException> told(words: String, crossinline action: () -> Unit) {
        val error = assertThrows(T::class.java) { action() }
        assertTrue(words in error.message!!) { "'$words' is not in: ${error.message}" }
    }

    @Test
    fun `logits that are not numbers are told, wherever they stand and however tokens are chosen`() {
        val random = Random(5)
        for (bad in listOf(Float.NaN, Float.POSITIVE_INFINITY)) {
            for (options in listOf(SamplingOptions(), SamplingOptions(0.7), SamplingOptions(1.0, topK = 3), SamplingOptions(1.0, topP = 0.9))) {
                val logits = FloatArray(50) { random.nextFloat() }
                Sampler(options, IntArray(0), 50).next(FloatBuffer.wrap(logits))
                logits[random.nextInt(50)] = bad
                told<EdgeException>("not numbers") { Sampler(options, IntArray(0), 50).next(FloatBuffer.wrap(logits)) }
                told<EdgeException>("not numbers") { likeliest(logits) }
                told<EdgeException>("not numbers") { logSoftmax(logits.copyOf()) }
            }
        }
        assertEquals(1, likeliest(floatArrayOf(Float.NEGATIVE_INFINITY, 0f, 0f)))
    }

    @Test
    fun `options that are no numbers are refused`() {
        for (bad in listOf(Double.NaN, Double.POSITIVE_INFINITY, -1.0)) {
            for (make in listOf<() -> Any>(
                { SamplingOptions(temperature = bad) }, { SamplingOptions(1.0, topP = bad) }, { SamplingOptions(1.0, minP = bad) },
                { SamplingOptions(repetitionPenalty = bad) }, { Text2TextOptions(diversity = bad) },
            )) told<InputException>("must be") { make() }
        }
        told<InputException>("length penalty") { Text2TextOptions(lengthPenalty = Double.NaN) }
        told<InputException>("1 or more") { GenerateOptions(maxTokens = Int.MIN_VALUE) }
    }

    @Test
    fun `recorded answers that let anything pass are refused`() {
        val top = TopLogits(listOf(1, 2), listOf(0.5f, 0.25f))
        val case = GoldenCase(listOf(1), listOf(1, 2), top, top)
        val form = GoldenForm("kv8", 0.1f, listOf(FormCase(listOf(1, 2), top, top)))
        val manifest = Bundle.open(source).manifest
        assertNull(Golden(0.5f, listOf(case), listOf(form)).fault(manifest))
        for (tolerance in listOf(Float.NaN, Float.POSITIVE_INFINITY, -1f, 1e6f)) {
            assertNotNull(Golden(tolerance, listOf(case)).fault(manifest))
            assertNotNull(Golden(0.5f, listOf(case), listOf(form.copy(tolerance = tolerance))).fault(manifest))
        }
        for (bad in listOf(
            case.copy(promptIds = emptyList()), case.copy(greedyIds = emptyList()), case.copy(greedyIds = listOf(-1, 2)),
            case.copy(promptIds = listOf(manifest.dims.vocabSize)), case.copy(promptIds = List(manifest.context) { 1 }),
            case.copy(first = TopLogits(listOf(1), listOf(0f, 1f))), case.copy(last = TopLogits(listOf(1), listOf(Float.NaN))),
            case.copy(first = TopLogits(emptyList(), emptyList())),
        )) assertNotNull(Golden(0.5f, listOf(bad)).fault(manifest))
        assertNotNull(Golden(0.5f, emptyList()).fault(manifest))
        assertNotNull(Golden(0.5f, listOf(case), listOf(form.copy(cases = emptyList()))).fault(manifest))
    }

    @Test
    fun `a conversation that is used while an answer of it is under way says so, and goes on`() {
        EdgeModel.open(source).use { model ->
            assumeTrue(model.hasChatFormat, "the bundle has no chat format")
            model.chat().use { chat ->
                runBlocking {
                    var refused = 0
                    val pieces = ArrayList<Piece>()
                    chat.say("Hello", GenerateOptions(6)).collect { piece ->
                        pieces += piece
                        if (piece.finish != null) return@collect // it has ended
                        told<InputException>("under way") { runBlocking { chat.say("Again", GenerateOptions(6)).toList() } }
                        told<InputException>("under way") { chat.reset() }
                        refused++
                    }
                    assertTrue(refused > 0)
                    val whole = model.generate("Hello", GenerateOptions(6)).toList()
                    assertEquals(whole.map { it.token }, pieces.map { it.token })
                    val both = List(2) { async(Dispatchers.Default) {
                        try {
                            chat.say("And then?", GenerateOptions(40)).toList().size
                        } catch (e: InputException) {
                            -1
                        }
                    } }.map { it.await() }
                    assertTrue(both.any { it > 0 }, "one answered: $both")
                }
            }
        }
    }

    @Test
    fun `weights that are rewritten in place end an answer with a sentence`() {
        val path = File(folder.toFile(), "model.edge").also { source.copyRecursively(it) }
        EdgeModel.open(path, EdgeOptions(context = 256)).use { model ->
            assertTrue(runBlocking { model.generate("Hello", GenerateOptions(4)).toList() }.isNotEmpty())
            RandomAccessFile(File(path, "weights.bin"), "rw").use {
                it.seek(it.length() / 2)
                it.write(ByteArray(4096))
            }
            Thread.sleep(50)
            told<EdgeException>("changed on disk") { runBlocking { model.generate("Hello", GenerateOptions(4)).toList() } }
        }
    }

    @Test
    fun `a vocabulary or layers of another size than the graphs' are refused`() {
        for ((number, field) in listOf("vocab_size" to 1, "head_dim" to 1, "heads" to 1).withIndex()) {
            val path = File(folder.toFile(), "$number.edge").also { source.copyRecursively(it) }
            val manifest = File(path, "edge.json")
            val text = manifest.readText().substringBeforeLast("\"crc32\"").trimEnd().trimEnd(',') + "}"
            val place = if (field.first == "vocab_size") text else text.substringAfter("\"kv\"")
            val changed = place.replace(Regex("\"${field.first}\": (\\d+)")) {
                "\"${field.first}\": ${it.groupValues[1].toInt() + field.second}"
            }
            manifest.writeText(if (place === text) changed else text.substringBefore("\"kv\"") + "\"kv\"" + changed)
            told<BundleException>("the manifest states") { EdgeModel.open(path) }
        }
    }
}
