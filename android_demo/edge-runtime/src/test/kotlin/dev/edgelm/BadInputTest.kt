package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.text.Message
import java.io.File
import java.nio.file.Path
import java.util.zip.CRC32
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** What a phone does to an app that no other test has: each time a sentence, or the same answer. */
class BadInputTest {
    @TempDir
    lateinit var folder: Path

    private val source: File get() = Corpus.decoders().first { Bundle.open(it).manifest.context >= 512 }

    private fun copy() = File(folder.toFile(), "model.edge").also { source.copyRecursively(it) }

    /** A copy whose manifest has other fields. */
    private fun copy(vararg fields: Pair<String, JsonElement>): File {
        val path = copy()
        val file = File(path, "edge.json")
        val changed = JsonObject(Json.parseToJsonElement(file.readText()).jsonObject - "crc32" + fields)
        val before = Json.encodeToString(JsonObject.serializer(), changed).dropLast(1) + ", "
        val sum = CRC32().apply { update(before.toByteArray()) }.value
        file.writeText(before + "\"crc32\": \"%08x\"\n}\n".format(sum))
        return path
    }

    private inline fun <reified T : EdgeException> told(words: String, crossinline action: () -> Unit) {
        val error = assertThrows(T::class.java) { action() }
        assertTrue(words in error.message!!) { "'$words' is not in: ${error.message}" }
    }

    @Test
    fun `memory pressure in the middle of an answer changes nothing of it`() {
        EdgeModel.open(source).use { model ->
            val long = "The river rose in the night. ".repeat(20) // which the prefill graph reads, where there is one
            for (prompt in listOf("Hello", long.take(550))) {
                val whole = runBlocking { model.generate(prompt, GenerateOptions(12)).toList().map { it.token } }
                val pressed = model.generate(prompt, GenerateOptions(12)).onEach { model.trim() }
                assertEquals(whole, runBlocking { pressed.toList().map { it.token } })
            }
        }
    }

    @Test
    fun `a model without a chat format takes one text, and says why it holds no conversation`() {
        val path = copy("chat_format" to JsonNull)
        EdgeModel.open(path).use { model ->
            told<InputException>("has no chat format, so it cannot hold a conversation") { model.chat() }
            val turns = listOf(Message("user", "Hello"), Message("assistant", "Hi"), Message("user", "Again"))
            told<InputException>("it takes one text at a time") { runBlocking { model.generate(turns).toList() } }
            assertTrue(runBlocking { model.generate("Hello", GenerateOptions(2)).toList() }.isNotEmpty())
        }
    }

    @Test
    fun `a model that answers in channels and has no chat format takes raw prompts alone`() {
        val thinking = JsonObject(mapOf("answer" to JsonPrimitive("<|channel|>final<|message|>")))
        EdgeModel.open(copy("chat_format" to JsonNull, "thinking" to thinking)).use { model ->
            told<InputException>("answers in channels") { runBlocking { model.generate("Hello").toList() } }
            told<InputException>("has no chat format") { model.chat() }
            assertTrue(runBlocking { model.generate("Hello", GenerateOptions(2), raw = true).toList() }.isNotEmpty())
        }
    }

    @Test
    fun `a path that cannot be read is told, for root as well`() {
        val path = copy()
        told<BundleException>("There is no bundle") { EdgeModel.open(File(path, "weights.bin/inner.edge")) }
        told<BundleException>("is not a bundle") { EdgeModel.open(File(path, "weights.bin")) }
        File(path, "edge.json").let { it.delete() && it.mkdir() }
        told<BundleException>("cannot be read") { EdgeModel.open(path) }
    }
}
