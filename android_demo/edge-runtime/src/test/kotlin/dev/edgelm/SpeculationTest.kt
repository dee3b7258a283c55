package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.decode.SamplingOptions
import dev.edgelm.decode.answer
import dev.edgelm.profile.CostCurve
import dev.edgelm.profile.DeviceName
import dev.edgelm.profile.ProfileOptions
import dev.edgelm.speculate.Draft
import dev.edgelm.speculate.Drafter
import dev.edgelm.speculate.Planner
import dev.edgelm.speculate.Speculation
import dev.edgelm.speculate.StepCosts
import dev.edgelm.speculate.Successors
import dev.edgelm.text.Message
import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.last
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Proposes how a text went on that it saw before, now and then with a wrong last token. */
private class Remembering : Drafter {
    override val priors = doubleArrayOf(0.99)
    private val texts = ArrayList<ArrayList<Int>>()
    private var text = ArrayList<Int>()
    private var asked = 0

    override fun begin(tokens: IntArray) {
        text = ArrayList(tokens.toList())
        texts += text
    }

    override fun accept(tokens: IntArray, count: Int) {
        text.addAll(tokens.take(count))
    }

    override fun propose(most: Int, minChance: Double, draft: Draft) {
        draft.size = 0
        val known = texts.firstOrNull { it.size > text.size && it.subList(0, text.size) == text } ?: return
        for (token in known.subList(text.size, minOf(known.size, text.size + most))) draft.add(token, 0)
        if (asked++ % 3 == 2) draft.tokens[draft.size - 1] = draft.tokens[draft.size - 1] xor 1
    }
}

/** Drafts change nothing but the time. */
class SpeculationTest {
    @TempDir
    lateinit var folder: Path

    private val source: File get() = Corpus.decoders().first { Bundle.open(it).manifest.context >= 512 }
    private val plain = EdgeOptions(speculate = Speculate.OFF)

    /** A model whose drafts are right, once it has said the same before. */
    private fun remembering(
        drafter: Drafter, options: EdgeOptions = EdgeOptions(), dispatcher: CoroutineDispatcher = Dispatchers.Default,
    ): EdgeModel {
        val planner = Planner(drafter.priors, StepCosts(null, WIDTH, multiple = 2), WIDTH)
        return EdgeModel(Loaded.open(source, options) { null }, Speculation(drafter, planner, WIDTH), dispatcher)
    }

    private fun EdgeModel.pieces(prompt: String, options: GenerateOptions) = runBlocking { generate(prompt, options).toList() }

    private fun List<Piece>.said() = map { it.token to it.text } to last().finish

    @Test
    fun `drafts that are right are accepted, and the answer stays`() {
        val sampled = SamplingOptions(temperature = 1.1, topK = 50, repetitionPenalty = 1.2, seed = 5)
        for (kv in listOf(Kv.FLOAT32, Kv.INT8)) {
            for (sampling in listOf(SamplingOptions(), SamplingOptions(repetitionPenalty = 1.3), sampled)) {
                val options = GenerateOptions(60, sampling)
                val alone = EdgeModel.open(source, plain.copy(kv = kv)).use { it.pieces("Hello there", options) }
                assertNull(alone.last().timings!!.drafting)
                assumeTrue(alone.size > 8, "the model says nothing")
                remembering(Remembering(), EdgeOptions(kv = kv)).use { model ->
                    for (again in 0..1) {
                        val pieces = model.pieces("Hello there", options)
                        assertEquals(alone.said(), pieces.said(), "$kv $sampling")
                        val did = pieces.last().timings!!.drafting!!
                        assertEquals(pieces.size - 1, did.steps + did.accepted)
                        assertEquals(again == 1, did.accepted > 0)
                        assertTrue(did.accepted <= did.drafted)
                    }
                }
            }
        }
    }

    @Test
    fun `an answer with drafts ends where the context does`() {
        for (context in listOf(40, 41, Bundle.open(source).manifest.context)) {
            val options = GenerateOptions(5000)
            val alone = EdgeModel.open(source, plain.copy(context = context)).use { it.pieces("Hello there", options) }
            remembering(Remembering(), EdgeOptions(context = context)).use { model ->
                repeat(2) { assertEquals(alone.said(), model.pieces("Hello there", options).said(), "context $context") }
            }
        }
    }

    @Test
    fun `the last token that came is never in the cache`() {
        val drafter = Remembering()
        remembering(drafter).use { it.pieces("Hello there", LONG) }
        remembering(drafter).use { model ->
            val prompt = model.promptIds(listOf(Message("user", "Hello there")))
            model.engine.newCache(prompt.size + LONG.maxTokens).use { cache ->
                answer(model.engine, model.tokenizer, cache, prompt, LONG, {}, model.speculation).use { pieces ->
                    var before = 0
                    for (piece in pieces) assertEquals(prompt.size + before++, cache.length)
                }
            }
        }
    }

    @Test
    fun `a chat that is cut short in the middle of a draft goes on as without drafts`() {
        val drafter = Remembering()
        // On one thread a collector's end always comes at the same place: on two, the last piece may count as said or not.
        EdgeModel.open(source, plain, Dispatchers.Unconfined).use { alone ->
            assumeTrue(alone.hasChatFormat, "the bundle has no chat format")
            remembering(drafter).use { first -> runBlocking { first.chat().use { it.say("Hello", LONG).toList() } } }
            for (count in 1..9) {
                val wanted = cutShort(alone, count)
                remembering(drafter, dispatcher = Dispatchers.Unconfined).use { model ->
                    assertEquals(wanted, cutShort(model, count), "after $count tokens")
                    assertFalse(model.speculation!!.taken.get())
                }
            }
        }
    }

    private fun cutShort(model: EdgeModel, count: Int) = runBlocking {
        model.chat().use { chat ->
            val cut = chat.say("Hello", LONG).take(count).toList().map { it.token }
            cut + chat.say("And then?", GenerateOptions(12)).toList().map { it.token }
        }
    }

    @Test
    fun `a stop string inside a draft ends a turn, and the next one goes on as without drafts`() {
        EdgeModel.open(source, plain).use { alone ->
            assumeTrue(alone.hasChatFormat, "the bundle has no chat format")
            val text = runBlocking { alone.chat().use { it.say("Hello", LONG).toList() } }.joinToString("") { it.text }
            assumeTrue(text.length > 12, "the model says nothing")
            val drafter = Remembering()
            remembering(drafter).use { first -> runBlocking { first.chat().use { it.say("Hello", LONG).toList() } } }
            for (at in listOf(4, 7, 11)) {
                val options = LONG.copy(stop = listOf(text.substring(at, at + 1)))
                remembering(drafter).use { assertEquals(stopped(alone, options), stopped(it, options), "stop at $at") }
            }
        }
    }

    private fun stopped(model: EdgeModel, options: GenerateOptions) = runBlocking {
        model.chat().use { chat ->
            val first = chat.say("Hello", options).toList()
            listOf(first.said(), chat.say("And then?", GenerateOptions(12)).toList().said()) to chat.messages
        }
    }

    @Test
    fun `of answers side by side one drafts, and all stay`() {
        val options = GenerateOptions(24)
        val prompts = List(4) { "Question number $it?" }
        val alone = EdgeModel.open(source, plain).use { model -> prompts.map { model.pieces(it, options).said() } }
        remembering(Remembering()).use { model ->
            repeat(2) {
                val together = runBlocking { prompts.map { async { model.generate(it, options).toList().said() } }.awaitAll() }
                assertEquals(alone, together)
                assertFalse(model.speculation!!.taken.get())
            }
        }
    }

    @Test
    fun `an answer that fails leaves the drafter to the next one`() {
        remembering(Remembering()).use { model ->
            assertThrows(IllegalStateException::class.java) {
                runBlocking { model.generate("Hello", GenerateOptions(50)).collect { error("the app failed") } }
            }
            assertFalse(model.speculation!!.taken.get())
        }
    }

    @Test
    fun `what is drafted does not change what memory is given to`() {
        val whole = EdgeModel.open(source).use { it.plan }
        assertEquals(16, whole.width)
        assertTrue(whole.kinds.getValue("draft tables") >= 30L * whole.context)
        val floats = EdgeOptions(kv = Kv.FLOAT32)
        val smallest = EdgeModel.open(source, floats.copy(context = 128, speculate = Speculate.OFF)).use { it.plan.bytes }
        val given = listOf(whole.bytes, whole.bytes - 1).map { EdgeOptions(memory = it) } +
            listOf((whole.bytes + smallest) / 2, smallest).map { floats.copy(memory = it) }
        for (options in given) {
            val plans = Speculate.entries.map { speculate ->
                EdgeModel.open(source, options.copy(speculate = speculate)).use { model ->
                    assertEquals(model.plan.width > 1, model.speculation != null)
                    assertTrue(model.plan.bytes <= options.memory!!)
                    model.plan
                }
            }
            assertEquals(1, plans.map { Triple(it.context, it.int8, it.prefill) }.toSet().size, "$options")
            assertEquals(1, plans[Speculate.OFF.ordinal].width)
            assertEquals(plans[Speculate.AUTO.ordinal].bytes, plans[Speculate.BLEND.ordinal].bytes)
        }
    }

    @Test
    fun `a profile of this bundle on this device is what steps are planned by`() {
        val device = DeviceName("a test", "a processor", "JVM")
        EdgeModel.open(source, EdgeOptions(kv = Kv.FLOAT32)).use { model ->
            val profile = runBlocking { model.profile(device, ProfileOptions(secondsPerRow = 0.01)).last() }
            assertNotNull(CostCurve.of(profile, model.bundle, int8 = false))
            assertNull(CostCurve.of(profile, model.bundle, int8 = true))
            assertNull(CostCurve.of(profile.copy(device = profile.device.copy(threads = 99)), model.bundle, int8 = false))
            assertNull(CostCurve.of(profile.copy(bundle = profile.bundle.copy(sha256 = "0")), model.bundle, int8 = false))
            val file = File(folder.toFile(), "profile.json").also { it.writeText(profile.toJson()) }
            EdgeModel.open(source, EdgeOptions(profile = file)).use { assertEquals(ids(model), ids(it)) }
            file.writeText(profile.toJson().dropLast(20))
            refused(file, "is not a profile")
            file.writeText(profile.copy(curve = profile.curve.map { it.copy(ms = -1.0) }).toJson())
            refused(file, "takes no time")
            refused(File(folder.toFile(), "none.json"), "cannot be read")
        }
    }

    private fun ids(model: EdgeModel) = model.pieces("Hello", GenerateOptions(12)).map { it.token }

    private fun refused(profile: File, words: String) {
        val error = assertThrows(InputException::class.java) { EdgeModel.open(source, EdgeOptions(profile = profile)) }
        assertTrue(words in error.message!!, error.message)
    }

    @Test
    fun `a model with an encoder is not asked to draft`() {
        val path = Corpus.text2text().first()
        val options = EdgeOptions(speculate = Speculate.LOOKUP)
        val error = assertThrows(InputException::class.java) { EdgeText2Text.open(path, options) }
        assertTrue("leave the choice out" in error.message!!, error.message)
    }

    @Test
    fun `a damaged table of successors is told in a sentence`() {
        val path = Corpus.decoders().first { File(it, Successors.FILE).exists() }
        val copy = File(folder.toFile(), "model.edge").also { path.copyRecursively(it) }
        val table = File(copy, Successors.FILE)
        val good = table.readBytes()
        for (bad in listOf(ByteArray(0), good.copyOf(7), good.copyOf(good.size - 8), good.full())) {
            table.writeBytes(bad)
            val error = assertThrows(BundleException::class.java) { Successors(Bundle.open(copy)) }
            assertTrue("export" in error.message!!, error.message)
        }
    }

    /** Every slot taken: a search would not end. */
    private fun ByteArray.full() = copyOf().also { for (i in 8 until size) it[i] = 1 }

    private companion object {
        const val WIDTH = 8
        val LONG = GenerateOptions(40)
    }
}
