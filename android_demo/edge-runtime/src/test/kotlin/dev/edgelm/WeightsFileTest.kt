package dev.edgelm

import dev.edgelm.bundle.Bundle
import java.io.File
import java.io.RandomAccessFile
import java.nio.file.Path
import java.util.concurrent.Executors
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Weights that are cut on disk while a model has them mapped: without a check the system kills the process. */
class WeightsFileTest {
    @TempDir
    lateinit var folder: Path

    private fun copy(bundle: File) = File(folder.toFile(), bundle.name).also { bundle.copyRecursively(it) }

    private fun weights(bundle: File) = File(bundle, "weights.bin")

    private fun cut(bundle: File) = RandomAccessFile(weights(bundle), "rw").use { it.setLength(0) }

    private fun all(flow: Flow<*>) = runBlocking { flow.toList() }

    /** Of model and collector, so that no step runs while the collector does: one that runs cannot be saved. */
    private val thread = Executors.newSingleThreadExecutor { Thread(it).apply { isDaemon = true } }.asCoroutineDispatcher()

    /** Cut the weights when the first of the flow is there. */
    private fun cutting(bundle: File, flow: Flow<*>) = runBlocking(thread) { flow.collect { cut(bundle) } }

    private fun told(action: () -> Unit) {
        val error = assertThrows(EdgeException::class.java) { action() }
        assertTrue("weights.bin changed on disk while the model was in use" in error.message!!, error.message)
    }

    private fun decoder() = copy(Corpus.decoders().first { Bundle.open(it).manifest.context >= 512 })

    @Test
    fun `an answer whose weights are cut ends with a sentence, and so does every later one`() {
        val path = decoder()
        EdgeModel.open(path, EdgeOptions(context = 256), thread).use { model ->
            val size = weights(path).length()
            told { cutting(path, model.generate("Hello", GenerateOptions(200))) }
            RandomAccessFile(weights(path), "rw").use { it.setLength(size) } // zeros are no weights
            told { all(model.generate("Hello")) }
        }
    }

    @Test
    fun `a chat whose weights are cut keeps its messages`() {
        val path = decoder()
        EdgeModel.open(path).use { model ->
            assumeTrue(model.hasChatFormat, "the bundle has no chat format")
            model.chat().use { chat ->
                all(chat.say("Hello", GenerateOptions(6)))
                val kept = chat.messages
                cut(path)
                told { all(chat.say("And then?", GenerateOptions(6))) }
                assertEquals(kept, chat.messages)
            }
        }
    }

    @Test
    fun `an encoder's weights that are cut are told`() {
        val text = copy(Corpus.text2text().first())
        EdgeText2Text.open(text, dispatcher = thread).use { model ->
            val language = model.languages.firstOrNull()
            val options = Text2TextOptions(30, minTokens = 20, beams = 1, sourceLanguage = language, targetLanguage = language)
            told { cutting(text, model.generate("A man rides a bicycle.", options)) }
            told { all(model.generate("A man rides a bicycle.", options)) }
        }
        val speech = copy(Corpus.speakers().first())
        EdgeTranscriber.open(speech).use { model ->
            cut(speech)
            told { all(model.transcribe(FloatArray(16_000) { if (it % 50 < 25) 0.3f else -0.3f })) }
        }
    }

    @Test
    fun `weights that are replaced stay as they were for an open model`() {
        val path = decoder()
        EdgeModel.open(path, EdgeOptions(context = 256)).use { model ->
            val before = runBlocking { model.generate("Hello", GenerateOptions(8)).toList().map { it.token } }
            assertTrue(weights(path).delete())
            weights(path).writeBytes(ByteArray(1))
            assertEquals(before, runBlocking { model.generate("Hello", GenerateOptions(8)).toList().map { it.token } })
        }
    }
}
