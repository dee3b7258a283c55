package dev.edgelm

import dev.edgelm.decode.SamplingOptions
import java.io.File
import kotlin.concurrent.thread
import kotlin.math.abs
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNamingStrategy
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory

/** Models from text to text, whose outputs are Python's, and which an app may treat as it likes. */
@OptIn(ExperimentalSerializationApi::class)
class Text2TextTest {
    @Serializable
    data class Options(
        val maxTokens: Int,
        val minTokens: Int? = null,
        val temperature: Double = 0.0,
        val topK: Int = 0,
        val topP: Double = 1.0,
        val repetitionPenalty: Double? = null,
        val seed: Long? = null,
        val beams: Int? = null,
        val groups: Int = 1,
        val diversity: Double = 0.0,
        val nBest: Int = 1,
        val lengthPenalty: Double? = null,
        val earlyStopping: JsonPrimitive? = null,
        val noRepeatNgram: Int? = null,
        val sourceLanguage: String? = null,
        val targetLanguage: String? = null,
    ) {
        fun own() = Text2TextOptions(
            maxTokens, minTokens, SamplingOptions(temperature, topK, topP, 0.0, repetitionPenalty, seed), emptyList(), beams,
            groups, diversity, lengthPenalty, earlyStopping?.let { EarlyStopping.valueOf(it.content.uppercase()) }, nBest, noRepeatNgram,
            sourceLanguage, targetLanguage,
        )
    }

    @Serializable
    data class Output(
        val source: String,
        val options: Options,
        val promptIds: List<Int>,
        val ids: List<Int>,
        val text: String,
        val finish: String,
        val score: List<Double> = emptyList(),
    )

    private val json = Json { namingStrategy = JsonNamingStrategy.SnakeCase }

    private fun outputs(path: File): List<Output> = Corpus.get("answers/${path.nameWithoutExtension}/outputs.jsonl").readLines()
        .filter { it.isNotEmpty() }.map { json.decodeFromString(Output.serializer(), it) }

    private fun EdgeText2Text.pieces(text: String, options: Text2TextOptions) = runBlocking { generate(text, options).toList() }

    private fun EdgeText2Text.ids(output: Output) = pieces(output.source, output.options.own()).map { it.token }

    /** A test for each bundle, with what Python wrote with it. */
    private fun each(test: (File, List<Output>) -> Unit): List<DynamicTest> =
        Corpus.text2text().map { path -> dynamicTest(path.name) { test(path, outputs(path)) } }

    @TestFactory
    fun `outputs are Python's`() = each { path, outputs ->
        EdgeText2Text.open(path).use { model ->
            assertTrue(outputs.size > 20)
            for (output in outputs) {
                val options = output.options.own()
                val what = "$options of ${output.source}"
                assertEquals(output.promptIds, model.promptIds(output.source, options).toList(), what)
                val pieces = model.pieces(output.source, options)
                assertEquals(output.ids, pieces.map { it.token }, what)
                assertEquals(output.text, pieces.joinToString("") { it.text }, what)
                assertEquals(output.finish, pieces.last().finish!!.name.lowercase(), what)
                val timings = pieces.last().timings!!
                assertEquals(listOf(output.promptIds.size, output.ids.size), listOf(timings.promptTokens, timings.generatedTokens))
            }
        }
    }

    @TestFactory
    fun `candidates are Python's with its scores`() = each { path, outputs ->
        EdgeText2Text.open(path).use { model ->
            for (output in outputs) {
                val found = runBlocking { model.candidates(output.source, output.options.own()) }
                val what = "${output.options} of ${output.source}"
                assertEquals(output.ids, found[0].tokens, what)
                assertEquals(output.text, found[0].text, what)
                if (output.score.isEmpty()) {
                    assertTrue(found.single().score.isNaN(), what)
                } else {
                    assertEquals(output.score.size, found.size, what)
                    val apart = output.score.zip(found).maxOf { (wanted, own) -> abs(wanted - own.score) }
                    assertTrue(apart < 1e-4) { "scores are $apart apart: $what" }
                }
            }
        }
    }

    @TestFactory
    fun `outputs side by side are those that come alone`() = each { path, outputs ->
        EdgeText2Text.open(path).use { model ->
            val some = outputs.filter { it.options.temperature == 0.0 }.take(12)
            val together = runBlocking {
                some.map { async { model.generate(it.source, it.options.own()).toList().map { piece -> piece.token } } }.awaitAll()
            }
            assertEquals(some.map { it.ids }, together)
            val alone = some.first()
            val found = arrayOfNulls<List<Int>>(2)
            val threads = found.indices.map { i -> thread { repeat(5) { found[i] = model.ids(alone) } } }
            threads.forEach { it.join() }
            assertEquals(listOf(alone.ids, alone.ids), found.toList())
        }
    }

    @TestFactory
    fun `bad input gets a sentence`() = each { path, outputs ->
        EdgeText2Text.open(path, EdgeOptions(context = 32)).use { model ->
            val given = outputs.first().options.own()
            fun refused(words: String, text: String = "Hello", options: Text2TextOptions = given) {
                val error = assertThrows(InputException::class.java) { model.pieces(text, options) }
                assertTrue(words in error.message!!) { "'$words' is not in: ${error.message}" }
            }
            refused("The text is empty", text = " \n ")
            refused("split it", text = "many words ".repeat(9000))
            if (model.languages.isEmpty()) {
                refused("no choice of languages", options = given.copy(targetLanguage = "de"))
            } else {
                refused("no target language 'tlh'", options = given.copy(targetLanguage = "tlh"))
            }
            refused("cannot give 5 texts", options = given.copy(beams = null, nBest = 5)) // the bundle's beams
            assertTrue(model.pieces("Hello", given).isNotEmpty()) // none of it harmed the model
        }
    }

    @Test
    fun `options that make no output get a sentence`() {
        for ((words, options) in listOf<Pair<String, () -> Text2TextOptions>>(
            "1 or more, not 0" to { Text2TextOptions(beams = 0) },
            "1 or more, not 0" to { Text2TextOptions(maxTokens = 0) },
            "1 or more, not 0" to { Text2TextOptions(nBest = 0) },
            "0 or more, not -1" to { Text2TextOptions(minTokens = -1) },
            "0 or more, not -2" to { Text2TextOptions(noRepeatNgram = -2) },
            "cannot both hold" to { Text2TextOptions(maxTokens = 3, minTokens = 4) },
            "1 or more, not 0" to { Text2TextOptions(groups = 0) },
            "0 or more, not -0.5" to { Text2TextOptions(diversity = -0.5) },
            "4 beams cannot be split into 3 groups" to { Text2TextOptions(beams = 4, groups = 3, diversity = 1.0) },
            "2 beam groups need a diversity" to { Text2TextOptions(beams = 4, groups = 2) },
            "A diversity needs beam groups" to { Text2TextOptions(beams = 4, diversity = 1.0) },
            "2 beams cannot give 3 texts" to { Text2TextOptions(beams = 2, nBest = 3) },
            "must be a number" to { Text2TextOptions(beams = 2, lengthPenalty = Double.NaN) },
            "and there is one" to { Text2TextOptions(beams = 1, lengthPenalty = 2.0) },
            "drawn for one text" to { Text2TextOptions(beams = 2, sampling = SamplingOptions(1.0)) },
            "stop string is empty" to { Text2TextOptions(stop = listOf("")) },
        )) {
            val error = assertThrows(InputException::class.java) { options() }
            assertTrue(words in error.message!!) { "'$words' is not in: ${error.message}" }
        }
    }

    @TestFactory
    fun `stop strings cut outputs and candidates`() = each { path, outputs ->
        EdgeText2Text.open(path).use { model ->
            val whole = outputs.first { it.text.length > 8 }
            val stop = whole.text.substring(4, 6)
            val options = whole.options.own().copy(stop = listOf(stop))
            val wanted = whole.text.substring(0, whole.text.indexOf(stop))
            val pieces = model.pieces(whole.source, options)
            assertEquals(wanted, pieces.joinToString("") { it.text })
            assertEquals(FinishReason.STOP, pieces.last().finish)
            assertEquals(wanted, runBlocking { model.candidates(whole.source, options) }[0].text)
        }
    }

    @TestFactory
    fun `an output that is cancelled leaves the model usable`() = each { path, outputs ->
        EdgeText2Text.open(path).use { model ->
            for (output in outputs.filter { it.options.temperature == 0.0 }.take(8)) {
                val begun = runBlocking { model.generate(output.source, output.options.own()).take(2).toList() }
                assertEquals(output.ids.take(2), begun.map { it.token })
                assertEquals(output.ids, model.ids(output))
            }
            model.trim()
            assertEquals(outputs[0].ids, model.ids(outputs[0]))
        }
    }

    @TestFactory
    fun `closing in the middle of an output ends it with a sentence`() = each { path, outputs ->
        for (beams in listOf(1, 3)) {
            val model = EdgeText2Text.open(path)
            val output = outputs.first { it.ids.size > 8 }
            val options = output.options.own().copy(beams = beams, minTokens = 20, maxTokens = 40)
            val error = assertThrows(EdgeException::class.java) {
                runBlocking { model.generate(output.source, options).collect { model.close() } }
            }
            assertEquals("The model was closed.", error.message)
            model.close()
            assertThrows(EdgeException::class.java) { model.ids(output) }
        }
    }

    @TestFactory
    fun `memory is planned before it is loaded`() = each { path, outputs ->
        val error = assertThrows(InputException::class.java) { EdgeText2Text.open(path, EdgeOptions(memory = 300_000)) }
        assertTrue("needs" in error.message!!, error.message)
        val most = EdgeText2Text.open(path, EdgeOptions(beams = 2)).use { it.plan }
        val less = EdgeOptions(memory = most.bytes - 1, beams = 2)
        if (most.source > 128) { // less than which no plan gives
            EdgeText2Text.open(path, less).use { assertTrue(it.maxSource < most.source) }
        } else {
            assertThrows(InputException::class.java) { EdgeText2Text.open(path, less) }
        }
        EdgeText2Text.open(path, EdgeOptions(memory = most.bytes, beams = 2)).use { model ->
            assertEquals(most.source, model.maxSource)
            val text = outputs.first().source
            val options = outputs.first { it.options.beams == 2 }.options.own()
            assertTrue(model.pieces(text, options).isNotEmpty())
            val refused = assertThrows(InputException::class.java) { model.pieces(text, options.copy(beams = 4)) }
            assertTrue("planned for 2 beams, not for 4" in refused.message!!, refused.message)
        }
    }

    @Test
    fun `many outputs leave memory flat`() {
        val path = Corpus.text2text().first()
        val some = outputs(path).filter { it.options.temperature == 0.0 }
        EdgeText2Text.open(path).use { model ->
            fun all(rounds: Int) = repeat(rounds) {
                for (output in some) model.pieces(output.source, output.options.own().copy(minTokens = 0, maxTokens = 4))
            }
            assertFlat(24_000, { all(10) }, { all(30) })
        }
    }

    @TestFactory
    fun `a bundle of another kind is refused`(): List<DynamicTest> = Corpus.bundles().map { path ->
        dynamicTest(path.name) {
            if (path in Corpus.text2text()) {
                val error = assertThrows(BundleException::class.java) { EdgeModel.open(path) }
                assertTrue("EdgeText2Text" in error.message!!, error.message)
            } else {
                assertThrows(BundleException::class.java) { EdgeText2Text.open(path) }
            }
        }
    }
}
