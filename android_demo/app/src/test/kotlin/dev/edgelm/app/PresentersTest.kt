package dev.edgelm.app

import dev.edgelm.BundleException
import dev.edgelm.app.chat.ChatPresenter
import dev.edgelm.app.chat.ConversationStore
import dev.edgelm.app.chat.Stored
import dev.edgelm.app.latency.LatencyPresenter
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.LoadedModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.app.model.Pressure
import dev.edgelm.profile.Profile
import dev.edgelm.text.Message
import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.runTest
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** What the screens do, without screens. */
@OptIn(ExperimentalCoroutinesApi::class)
class PresentersTest {
    @TempDir
    lateinit var temporary: Path

    private val bundle get() = File(temporary.toFile(), "a.edge")
    private val marker get() = LoadMarker(File(temporary.toFile(), "loading"))
    private val store get() = ConversationStore(File(temporary.toFile(), "conversations"))

    /** The parts of one process; a second one begins with what the first left on the disk. */
    private inner class Process(private val test: TestScope, private val load: (File) -> LoadedModel = { FakeModel() }) {
        private val io = UnconfinedTestDispatcher(test.testScheduler)
        private val scope = test.backgroundScope
        val holder = ModelHolder(marker, TestScope(io), io) { load(it) }
        val chat by lazy { ChatPresenter(bundle, holder, store, TestScope(io), io) }
        val latency by lazy { LatencyPresenter(bundle, holder, true, File(temporary.toFile(), "profiles"), TestScope(io), io) }

        fun opened() = apply { holder.open(bundle) }
    }

    @Test
    fun `a model that took the app down is not loaded again unless it is asked for`() = runTest {
        marker.begin(bundle.name) // and the process dies
        var loads = 0
        val next = Process(this) { FakeModel().also { loads++ } }.opened()
        assertEquals(0, loads)
        assertTrue("was not loaded again" in (next.holder.state.value as ModelState.Missing).sentence)
        assertTrue("was not loaded again" in next.chat.state.value.problem!!)
        next.chat.loadAnyway()
        assertEquals(1, loads)
        assertTrue(next.chat.state.value.ready)
        assertFalse(marker.isLeft(bundle.name))
    }

    @Test
    fun `the marker is there while a model loads, and not after it was refused`() = runTest {
        val process = Process(this) {
            assertTrue(marker.isLeft(bundle.name))
            throw BundleException("It is damaged.")
        }.opened()
        assertEquals(ModelState.Missing(bundle.name, "It is damaged."), process.holder.state.value)
        assertFalse(marker.isLeft(bundle.name))
    }

    @Test
    fun `another model closes the one that is there`() = runTest {
        val models = ArrayList<FakeModel>()
        val process = Process(this) { FakeModel(it.name).also { model -> models += model } }.opened().opened()
        process.holder.open(File(temporary.toFile(), "b.edge"))
        assertEquals(listOf(1, 0), models.map { it.closed })
        assertEquals("b.edge", process.holder.state.value.bundle)
    }

    @Test
    fun `pressure shrinks the model, and then closes it with a sentence`() = runTest {
        assertEquals(listOf(Pressure.NONE, Pressure.SHRINK, Pressure.CLOSE, Pressure.SHRINK, Pressure.CLOSE), listOf(0, 10, 15, 20, 40).map(Pressure::of))
        val model = FakeModel()
        val process = Process(this) { model }.opened()
        process.chat.send("Hello")
        process.holder.onPressure(Pressure.SHRINK)
        assertEquals(1, model.trimmed)
        process.holder.onPressure(Pressure.CLOSE)
        assertEquals(1, model.closed)
        assertTrue("needed memory" in process.chat.state.value.problem!!)
        assertEquals(2, process.chat.state.value.turns.size)
        process.chat.loadAnyway()
        assertTrue(process.chat.state.value.ready)
    }

    @Test
    fun `an answer streams, and ends with its clock`() = runTest {
        val gate = CompletableDeferred<Unit>()
        val chat = Process(this) { FakeModel(gate = gate) }.opened().chat
        chat.send("  Why is the sky blue? ")
        assertTrue(chat.state.value.answering)
        assertEquals(listOf(Message("user", "Why is the sky blue?"), Message("assistant", "The sky is blue ")), chat.state.value.turns)
        chat.send("And at night?") // not now
        gate.complete(Unit)
        assertFalse(chat.state.value.answering)
        assertEquals("The sky is blue because air scatters blue light.", chat.state.value.turns.last().content)
        assertEquals("First token after 180 ms, 23.0 tokens/s, 24 tokens", chat.state.value.note)
    }

    @Test
    fun `what was said before stop stays, and the chat goes on`() = runTest {
        val chat = Process(this) { FakeModel(gate = CompletableDeferred()) }.opened().chat
        chat.send("Why?")
        chat.stop()
        assertEquals("Stopped.", chat.state.value.note)
        assertEquals("The sky is blue ", chat.state.value.turns.last().content)
        assertTrue(chat.state.value.ready && !chat.state.value.answering)
    }

    @Test
    fun `a question without an answer goes back into the input`() = runTest {
        val chat = Process(this) { FakeModel(answer = listOf("", "", "")) }.opened().chat
        chat.send("Why?")
        assertEquals(emptyList<Message>(), chat.state.value.turns)
        assertEquals("Why?", chat.state.value.draft)
    }

    @Test
    fun `a conversation outlives the process, also in the middle of an answer`() = runTest {
        val first = Process(this) { FakeModel(gate = CompletableDeferred()) }.opened().chat
        first.send("Why?")
        first.keep() // the screen is hidden, and the process dies
        val next = Process(this).opened().chat
        assertEquals(listOf("Why?", "The sky is blue "), next.state.value.turns.map { it.content })
        next.keepDraft("And th")
        next.keep()
        assertEquals("And th", Process(this).opened().chat.state.value.draft)
    }

    @Test
    fun `a question that nobody lived to answer waits in the input`() = runTest {
        val asked = listOf(Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Why?"), Message("assistant", ""))
        store.save(Stored("1", bundle.name, 1, asked))
        val state = Process(this).opened().chat.state.value
        assertEquals(asked.take(2), state.turns)
        assertEquals("Why?", state.draft)
    }

    @Test
    fun `conversations are left, found again and deleted`() = runTest {
        val chat = Process(this).opened().chat
        chat.send("First\nwith more lines")
        chat.begin()
        assertEquals(emptyList<Message>(), chat.state.value.turns)
        chat.send("Second")
        val earlier = chat.earlier()
        assertEquals(listOf("First"), earlier.map { it.title })
        chat.begin(earlier[0])
        assertEquals("First\nwith more lines", chat.state.value.turns[0].content)
        chat.begin(forget = true)
        assertEquals(listOf("Second"), chat.earlier().map { it.title })
        assertTrue(chat.state.value.ready)
    }

    @Test
    fun `a model without a chat format says so`() = runTest {
        val state = Process(this) { FakeModel(chats = false) }.opened().chat.state.value
        assertTrue("no chat format" in state.problem!!)
        assertFalse(state.ready)
    }

    @Test
    fun `a damaged conversation is passed over`() {
        store.save(Stored("1", bundle.name, 1, listOf(Message("user", "Hi"))))
        File(temporary.toFile(), "conversations/2.json").writeText("{\"id\": ")
        assertEquals(listOf("1"), store.all(bundle.name).map { it.id })
        assertEquals(emptyList<Stored>(), store.all("other.edge"))
    }

    @Test
    fun `a profile grows, is kept whole and found again`() = runTest {
        val gate = CompletableDeferred<Unit>()
        val process = Process(this) { FakeModel(gate = gate) }.opened()
        process.latency.start()
        assertEquals(1, process.latency.state.value.profile!!.decode.size)
        assertTrue(process.latency.state.value.measuring && !process.latency.state.value.shareable)
        gate.complete(Unit)
        assertTrue(process.latency.state.value.shareable)
        assertEquals(profile(3), Profile.fromJson(process.latency.file.readText()))
        assertEquals(profile(3), Process(this).latency.state.value.profile)
    }

    @Test
    fun `a profile that was stopped is not kept, and the one before stays`() = runTest {
        val process = Process(this) { FakeModel(gate = CompletableDeferred()) }.opened()
        process.latency.start()
        process.latency.stop()
        assertNull(process.latency.state.value.profile)
        assertFalse(process.latency.file.exists())
        assertEquals("Stopped before all was measured.", process.latency.state.value.note)
    }
}
