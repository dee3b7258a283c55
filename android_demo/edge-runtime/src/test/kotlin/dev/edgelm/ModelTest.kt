package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.text.Message
import java.io.File
import java.io.RandomAccessFile
import java.nio.file.Path
import java.util.zip.CRC32
import kotlin.concurrent.thread
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** One bundle of the corpus, used as an app uses it, and harmed as a phone harms it. */
class ModelTest {
    @TempDir
    lateinit var folder: Path

    private val source: File get() = Corpus.decoders().first { Bundle.open(it).manifest.context >= 512 }

    private fun copy(): File = File(folder.toFile(), "model.edge").also { source.copyRecursively(it) }

    private fun EdgeModel.ids(prompt: String, tokens: Int = 8) =
        runBlocking { generate(prompt, GenerateOptions(tokens)).toList().map { it.token } }

    private fun refused(path: File, vararg words: String) {
        val error = assertThrows(BundleException::class.java) { EdgeModel.open(path) }
        for (word in words) assertTrue(word in error.message!!) { "'$word' is not in: ${error.message}" }
    }

    /** Change the manifest's text, with a checksum that is right again. */
    private fun rewrite(path: File, change: (String) -> String) {
        val file = File(path, "edge.json")
        val text = change(file.readText())
        val before = text.substring(0, text.lastIndexOf("\"crc32\""))
        val sum = CRC32().apply { update(before.toByteArray()) }.value
        file.writeText(before + "\"crc32\": \"%08x\"\n}\n".format(sum))
    }

    @Test
    fun `a damaged bundle is told in a sentence`() {
        val path = copy()
        refused(File(folder.toFile(), "none.edge"), "There is no bundle")
        File(path, "weights.bin").let { weights ->
            RandomAccessFile(weights, "rw").use {
                val changed = it.read() xor 1
                it.seek(0)
                it.write(changed)
            }
        }
        refused(path, "weights.bin", "damaged")
        RandomAccessFile(File(path, "weights.bin"), "rw").use { it.setLength(it.length() - 1) }
        refused(path, "weights.bin", "bytes")
        File(path, "weights.bin").delete()
        refused(path, "weights.bin", "missing")
    }

    @Test
    fun `a manifest that is too new, changed, cut or leads out is refused`() {
        val path = copy()
        val good = File(path, "edge.json").readText()
        rewrite(path) { it.replace("\"format_version\": 2", "\"format_version\": 3") }
        refused(path, "format version 3", "update the app")
        File(path, "edge.json").writeText(good.replace("\"num_heads\": ", "\"num_heads\": 1"))
        refused(path, "checksum")
        File(path, "edge.json").writeText(good.substring(0, good.length / 2))
        refused(path, "damaged")
        File(path, "edge.json").writeText(good)
        rewrite(path) { it.replace("\"graphs/decoder.onnx\"", "\"../decoder.onnx\"") }
        refused(path, "leads out")
        File(path, "edge.json").writeText("[]")
        refused(path, "damaged")
    }

    @Test
    fun `a bundle that the app may not read is told`() {
        val path = copy()
        val weights = File(path, "weights.bin")
        weights.setReadable(false, false)
        assumeTrue(!weights.canRead(), "this user may read every file")
        refused(path, "permission")
    }

    @Test
    fun `files are read again only after they changed`() {
        val path = copy()
        val notes = File(folder.toFile(), "notes")
        var read = 0
        Bundle.open(path).checkFiles(notes) { read += it }
        assertTrue(read > 0)
        read = 0
        Bundle.open(path).checkFiles(notes) { read += it }
        assertEquals(0, read)
        File(path, "weights.bin").setLastModified(1_000_000_000_000)
        Bundle.open(path).checkFiles(notes) { read += it }
        assertTrue(read > 0)
    }

    @Test
    fun `a model that does not fit is refused before it is loaded`() {
        val error = assertThrows(InputException::class.java) { EdgeModel.open(source, EdgeOptions(memory = 500_000)) }
        assertTrue(Regex("needs \\d+ MB for 128 tokens, and 0 MB are allowed").containsMatchIn(error.message!!), error.message)
        val most = EdgeModel.open(source).use { it.plan }
        EdgeModel.open(source, EdgeOptions(memory = most.bytes)).use { assertEquals(most.context, it.context) }
        val less = EdgeModel.open(source, EdgeOptions(context = 256)).use { it.plan.bytes }
        EdgeModel.open(source, EdgeOptions(memory = less)).use {
            assertTrue(it.plan.bytes <= less)
            assertTrue(it.ids("Hello").isNotEmpty())
        }
    }

    @Test
    fun `a prompt that is empty or too long is told`() {
        EdgeModel.open(source, EdgeOptions(context = 32)).use { model ->
            assertThrows(InputException::class.java) { model.ids(" ") }
            val error = assertThrows(InputException::class.java) { model.ids("many words ".repeat(100)) }
            assertTrue("the context holds 32" in error.message!!, error.message)
            assertThrows(InputException::class.java) { EdgeModel.open(source, EdgeOptions(context = 1_000_000)) }
        }
    }

    @Test
    fun `an answer ends where the context does`() {
        EdgeModel.open(source, EdgeOptions(context = 40)).use { model ->
            val prompt = model.promptIds(listOf(Message("user", "Hello there")))
            val pieces = runBlocking { model.generate("Hello there", GenerateOptions(500)).toList() }
            val last = pieces.last()
            assumeTrue(last.finish != FinishReason.STOP, "the model ended it before")
            assertEquals(FinishReason.CONTEXT, last.finish)
            assertEquals(40 + 1, prompt.size + pieces.size)
            assertEquals(pieces.size, last.timings!!.generatedTokens)
        }
    }

    @Test
    fun `answers side by side are those that come alone`() {
        EdgeModel.open(source).use { model ->
            val prompts = List(6) { "Question number $it?" }
            val alone = prompts.map { model.ids(it) }
            val together = runBlocking {
                prompts.map { async { model.generate(it, GenerateOptions(8)).toList().map { piece -> piece.token } } }.awaitAll()
            }
            assertEquals(alone, together)
        }
    }

    @Test
    fun `two loads at once work`() {
        val answers = arrayOfNulls<List<Int>>(2)
        val threads = answers.indices.map { i ->
            thread { EdgeModel.open(source).use { answers[i] = it.ids("Hello") } }
        }
        threads.forEach { it.join() }
        assertEquals(answers[0], answers[1])
        assertTrue(answers[0]!!.isNotEmpty())
    }

    @Test
    fun `an answer that is cancelled leaves the model usable`() {
        EdgeModel.open(source).use { model ->
            val whole = model.ids("Hello", 8)
            assertEquals(whole.take(2), runBlocking { model.generate("Hello", GenerateOptions(8)).take(2).toList() }.map { it.token })
            assertEquals(whole, model.ids("Hello", 8))
        }
    }

    @Test
    fun `closing in the middle of an answer ends it with a sentence`() {
        val model = EdgeModel.open(source, EdgeOptions(context = 256))
        val error = assertThrows(EdgeException::class.java) {
            runBlocking { model.generate("Hello", GenerateOptions(200)).collect { model.close() } }
        }
        assertEquals("The model was closed.", error.message)
        model.close()
        assertThrows(EdgeException::class.java) { model.ids("Hello") }
    }

    @Test
    fun `trimming gives memory back and answers stay`() {
        EdgeModel.open(source).use { model ->
            val before = model.ids("Hello")
            model.trim()
            assertEquals(before, model.ids("Hello"))
        }
    }

    @Test
    fun `a chat says what a conversation read at once says`() {
        EdgeModel.open(source).use { model ->
            assumeTrue(model.hasChatFormat, "the bundle has no chat format")
            model.chat().use { chat ->
                runBlocking {
                    chat.say("Hello", GenerateOptions(6)).toList()
                    chat.say("Again", GenerateOptions(6)).take(2).toList() // cut short
                    val roles = chat.messages.map { it.role } // without turns of which nothing was shown
                    assertEquals(List(roles.size) { if (it % 2 == 0) "user" else "assistant" }, roles)
                    chat.close() // as an app that needs memory: the conversation goes on, and is read anew
                    chat.say("And then?", GenerateOptions(6)).toList()
                    model.chat(chat.messages).use { again -> // as after the death of the app's process
                        assertTrue(again.say("And now?", GenerateOptions(6)).toList().isNotEmpty())
                        assertEquals(chat.messages, again.messages.take(chat.messages.size))
                    }
                    val closed = assertThrows(EdgeException::class.java) {
                        runBlocking { chat.say("More", GenerateOptions(100)).collect { chat.close() } }
                    }
                    assertEquals("The conversation was closed.", closed.message)
                    chat.reset()
                    assertEquals(emptyList<Message>(), chat.messages)
                }
            }
        }
    }

    @Test
    fun `a chat goes on from its messages, and a turn without an answer is not kept`() {
        EdgeModel.open(source).use { model ->
            assumeTrue(model.hasChatFormat, "the bundle has no chat format")
            runBlocking {
                val kept = listOf(Message("user", "Hello"), Message("assistant", "Hi there."))
                val whole = model.generate(kept + Message("user", "Again"), GenerateOptions(6)).toList().map { it.token }
                model.chat(kept).use { assertEquals(whole, it.say("Again", GenerateOptions(6)).toList().map { it.token }) }
                val answer = model.chat(kept).use { chat -> chat.say("And now?", GenerateOptions(6)).toList().joinToString("") { it.text } }
                assumeTrue(answer.isNotEmpty(), "the model says nothing")
                model.chat(kept).use { chat ->
                    chat.say("And now?", GenerateOptions(6, stop = listOf(answer.take(1)))).toList()
                    assertEquals(kept, chat.messages)
                    assertThrows(EdgeException::class.java) { runBlocking { chat.say("many words ".repeat(5000)).toList() } }
                    assertEquals(kept, chat.messages)
                }
            }
        }
    }

    @Test
    fun `many answers leave memory flat`() {
        EdgeModel.open(source).use { model ->
            fun answers(count: Int) = repeat(count) { model.ids("Question number $it?", 4) }
            assertFlat(24_000, { answers(200) }, { answers(1000) })
        }
    }
}
