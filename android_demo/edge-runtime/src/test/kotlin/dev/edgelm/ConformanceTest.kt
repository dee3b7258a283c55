package dev.edgelm

import dev.edgelm.decode.Circling
import dev.edgelm.decode.SamplingOptions
import dev.edgelm.text.Message
import java.io.File
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.TestFactory

/** What `edge verify --emit` wrote is answered here alike: the same tokens, the same text, the same end. */
class ConformanceTest {
    @Serializable
    data class Options(
        @SerialName("max_tokens") val maxTokens: Int,
        val temperature: Double = 0.0,
        @SerialName("top_k") val topK: Int = 0,
        @SerialName("top_p") val topP: Double = 1.0,
        @SerialName("min_p") val minP: Double = 0.0,
        @SerialName("repetition_penalty") val repetitionPenalty: Double = 1.0,
        val seed: Long? = null,
        val circles: String = "avoid",
    ) {
        fun generate() = GenerateOptions(
            maxTokens,
            SamplingOptions(temperature, topK, topP, minP, repetitionPenalty, seed, Circling.valueOf(circles.uppercase())),
        )
    }

    @Serializable
    data class Answer(
        val prompt: String,
        val raw: Boolean,
        val kv: String = "float32",
        val options: Options,
        @SerialName("prompt_ids") val promptIds: List<Int>,
        val ids: List<Int>,
        val text: String,
        val finish: String,
    )

    @Serializable
    data class Turn(val say: String, val ids: List<Int>, val text: String, val finish: String)

    @Serializable
    data class Conversation(val system: String?, val turns: List<Turn>)

    @Serializable
    data class Skipped(val skip: String)

    private val json = Json { ignoreUnknownKeys = true }

    private fun lines(file: File): List<String> = file.readLines().filter { it.isNotEmpty() }

    @TestFactory
    fun `answers are Python's`(): List<DynamicTest> = Corpus.decoders().flatMap { path ->
        val answers = lines(Corpus.get("answers/${path.nameWithoutExtension}/answers.jsonl"))
            .map { json.decodeFromString(Answer.serializer(), it) }
        answers.groupBy { it.kv }.flatMap { (kv, given) -> DRAFTED.map { Triple(kv, given, it) } }.map { (kv, given, drafts) ->
            dynamicTest("${path.name} $kv, ${given.size} answers, drafts $drafts") {
                EdgeModel.open(path, EdgeOptions(kv = Kv.valueOf(kv.uppercase()), speculate = drafts)).use { model ->
                    for (answer in given) repeat(model, answer)
                }
            }
        }
    }

    @TestFactory
    fun `answers and chats of every policy that skips layers are Python's`(): List<DynamicTest> = Corpus.decoders().flatMap { path ->
        lines(Corpus.get("answers/${path.nameWithoutExtension}/skips.jsonl"))
            .groupBy { json.decodeFromString(Skipped.serializer(), it).skip }
            .flatMap { (skip, given) -> listOf(Speculate.OFF, Speculate.BLEND).map { Triple(skip, given, it) } }
            .map { (skip, given, drafts) ->
                dynamicTest("${path.name} $skip, ${given.size} answers and chats, drafts $drafts") {
                    val (chats, answers) = given.partition { "\"turns\":" in it }
                    EdgeModel.open(path, EdgeOptions(skip = skip, speculate = drafts)).use { model ->
                        for (answer in answers) repeat(model, json.decodeFromString(Answer.serializer(), answer))
                        for (chat in chats) repeat(model, json.decodeFromString(Conversation.serializer(), chat))
                    }
                }
            }
    }

    private fun repeat(model: EdgeModel, answer: Answer) {
        val messages = listOf(Message("user", answer.prompt))
        assertEquals(answer.promptIds, model.promptIds(messages, answer.raw).toList(), answer.prompt)
        val pieces = runBlocking { model.generate(messages, answer.options.generate(), answer.raw).toList() }
        val what = "${answer.options} of ${answer.prompt}"
        assertEquals(answer.ids, pieces.map { it.token }, what)
        assertEquals(answer.text, pieces.joinToString("") { it.text }, what)
        assertEquals(answer.finish, pieces.last().finish!!.name.lowercase(), what)
    }

    @TestFactory
    fun `chats are Python's`(): List<DynamicTest> = Corpus.decoders().flatMap { path ->
        val chats = lines(Corpus.get("answers/${path.nameWithoutExtension}/chats.jsonl"))
            .map { json.decodeFromString(Conversation.serializer(), it) }
        DRAFTED.map { drafts ->
            dynamicTest("${path.name}, ${chats.size} chats, drafts $drafts") {
                EdgeModel.open(path, EdgeOptions(speculate = drafts)).use { model ->
                    for (given in chats) repeat(model, given)
                }
            }
        }
    }

    private fun repeat(model: EdgeModel, given: Conversation) =
        model.chat(given.system).use { chat -> given.turns.forEach { repeat(chat, it) } }

    private fun repeat(chat: EdgeChat, turn: Turn) {
        val pieces = runBlocking { chat.say(turn.say, GenerateOptions(MAX_TOKENS)).toList() }
        assertEquals(turn.ids, pieces.map { it.token }, turn.say)
        assertEquals(turn.text, pieces.joinToString("") { it.text }, turn.say)
        assertEquals(turn.finish, pieces.last().finish!!.name.lowercase())
    }

    private companion object {
        val DRAFTED = listOf(Speculate.OFF, Speculate.LOOKUP, Speculate.BLEND)
        const val MAX_TOKENS = 24
    }
}
