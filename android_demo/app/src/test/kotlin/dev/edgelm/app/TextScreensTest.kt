package dev.edgelm.app

import dev.edgelm.app.dictate.DictatePresenter
import dev.edgelm.app.dictate.Recording
import dev.edgelm.app.dictate.Stage
import dev.edgelm.app.latency.measure
import dev.edgelm.app.latency.profileFile
import dev.edgelm.app.model.Language
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.LoadedModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.Pressure
import dev.edgelm.app.translate.Translation
import dev.edgelm.app.translate.TranslatePresenter
import dev.edgelm.EdgeException
import dev.edgelm.profile.Profile
import java.io.File
import java.nio.file.Path
import java.util.Locale
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.runTest
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Translations, dictations and what a computer asks for, without screens. */
@OptIn(ExperimentalCoroutinesApi::class)
class TextScreensTest {
    @TempDir
    lateinit var temporary: Path

    private val folder get() = temporary.toFile()
    private val bundle get() = File(folder, "a.edge")

    @BeforeEach
    fun english() = Locale.setDefault(Locale.US)

    /** The parts of one process; a second one begins with what the first left on the disk. */
    private inner class Process(test: TestScope, private val microphone: FakeMicrophone = FakeMicrophone(), model: () -> LoadedModel) {
        private val io = UnconfinedTestDispatcher(test.testScheduler)
        val holder = ModelHolder(LoadMarker(File(folder, "loading")), TestScope(io), io) { model() }.also { it.open(bundle) }
        val translate by lazy { TranslatePresenter(bundle, holder, folder, TestScope(io), io) }
        val dictate by lazy { DictatePresenter(bundle, holder, microphone, folder, TestScope(io), io) { 0L } }
    }

    private val TranslatePresenter.output get() = state.value.translation.output

    @Test
    fun `a translation streams in the chosen languages, and ends with its clock`() = runTest {
        val gate = CompletableDeferred<Unit>()
        val model = FakeTranslator(gate)
        val translate = Process(this) { model }.translate
        assertEquals("eng_Latn" to "deu_Latn", translate.state.value.translation.run { from to to }) // the phone's, and another
        translate.chooseTarget("fra_Latn")
        translate.keepSource("A man rides a bicycle.")
        translate.start()
        assertTrue(translate.state.value.working)
        assertEquals("Ein Mann fährt ", translate.output)
        translate.start() // not now
        gate.complete(Unit)
        assertFalse(translate.state.value.working)
        assertEquals("Ein Mann fährt auf einem Fahrrad.", translate.output)
        assertEquals("First token after 95 ms, 20.0 tokens/s, 11 tokens", translate.state.value.note)
        assertEquals(listOf(listOf("A man rides a bicycle.", "eng_Latn", "fra_Latn")), model.asked)
    }

    @Test
    fun `what there is of a stopped translation stays, and outlives the process`() = runTest {
        val first = Process(this) { FakeTranslator(CompletableDeferred()) }.translate
        first.chooseTarget("fra_Latn")
        first.keepSource("A man rides a bicycle.")
        first.start()
        first.keep() // the screen is hidden, and the process dies
        val next = Process(this) { FakeTranslator() }.translate
        assertEquals(Translation("A man rides a bicycle.", "Ein Mann fährt ", "eng_Latn", "fra_Latn"), next.state.value.translation)
        first.stop()
        assertEquals("Stopped.", first.state.value.note)
        assertEquals("Ein Mann fährt ", first.output)
        assertTrue(first.state.value.ready && !first.state.value.working)
    }

    @Test
    fun `a model without languages has none to choose, and an empty text is a sentence`() = runTest {
        val model = FakeTranslator(sources = emptyList())
        val translate = Process(this) { model }.translate
        translate.start()
        assertTrue("is empty" in translate.state.value.note)
        translate.keepSource("A")
        translate.start()
        assertEquals(listOf(listOf("A", null, null)), model.asked)
        assertEquals(emptyList<Language>(), translate.state.value.sources)
    }

    @Test
    fun `a language has its name, and the phone's own is the first choice`() {
        fun names(vararg codes: String) = Language.all(codes.toList()).map { it.toString() }
        assertEquals(listOf("French", "German", "Portuguese"), names("fra_Latn", "de_DE", "pt"))
        val scripts = names("zho_Hans", "zho_Hant", "x") // as each JDK has it, but not alike
        assertTrue(scripts.toSet().size == 3 && scripts[0].startsWith("Chinese (") && scripts[2] == "x")
        assertEquals("b", Language.choose(listOf("a", "b"), null, "b", "a"))
        assertEquals("en_XX", Language.choose(listOf("de_DE", "en_XX"), "xx"))
        assertEquals("eng_Latn", Language.choose(listOf("deu_Latn", "eng_Latn")))
        assertEquals("de_DE", Language.choose(listOf("de_DE", "fr_XX")))
        assertNull(Language.choose(emptyList(), "de"))
    }

    @Test
    fun `a recording is kept as it grows, and heard when it is stopped`() = runTest {
        val gate = CompletableDeferred<Unit>()
        val model = FakeHearer(gate)
        val microphone = FakeMicrophone()
        val dictate = Process(this, microphone) { model }.dictate
        dictate.record()
        assertEquals(16_000, microphone.rate)
        assertEquals(Stage.RECORDING, dictate.state.value.stage)
        assertEquals(1.2, dictate.state.value.seconds)
        assertTrue(dictate.state.value.level in 0.5f..0.9f)
        assertEquals(2L * 12 * 1600, File(folder, "a.edge.pcm").length())
        dictate.stop()
        assertEquals(Stage.TRANSCRIBING, dictate.state.value.stage)
        assertEquals(FakeHearer.LINES.take(1), dictate.state.value.dictation.lines)
        gate.complete(Unit)
        assertEquals(FakeHearer.LINES, dictate.state.value.dictation.lines)
        assertEquals(Stage.NOTHING, dictate.state.value.stage)
        assertEquals("1 s of sound in 0.0 s", dictate.state.value.note)
        assertEquals(List(12 * 1600) { (it % 1600 % 100 * 60).toShort() }, model.heard.single())
        assertTrue(dictate.state.value.dictation.text.startsWith("The lighthouse keeper wrote"))
    }

    @Test
    fun `a recording outlives the process, and can be heard again in another language`() = runTest {
        val first = Process(this) { FakeHearer(CompletableDeferred()) }.dictate
        first.record() // and the process dies
        val model = FakeHearer()
        val next = Process(this) { model }.dictate
        assertTrue(next.state.value.canTranscribe)
        next.chooseLanguage("de")
        next.transcribe()
        assertEquals(listOf<String?>("de"), model.asked)
        assertEquals(12 * 1600, model.heard.single().size)
        val last = Process(this) { FakeHearer() }.dictate
        assertEquals(FakeHearer.LINES, last.state.value.dictation.lines)
        assertEquals("de", last.state.value.dictation.language)
        last.clear()
        assertFalse(last.state.value.canTranscribe || File(folder, "a.edge.pcm").exists())
        assertEquals("", Process(this) { FakeHearer() }.dictate.state.value.dictation.text)
    }

    @Test
    fun `a transcription is stopped, and what was heard stays`() = runTest {
        val dictate = Process(this) { FakeHearer(CompletableDeferred()) }.dictate
        dictate.record()
        dictate.hide() // ends the recording
        assertEquals(Stage.TRANSCRIBING, dictate.state.value.stage)
        dictate.stop()
        assertEquals("Stopped. The recording is kept.", dictate.state.value.note)
        assertEquals(FakeHearer.LINES.take(1), dictate.state.value.dictation.lines)
        assertTrue(dictate.state.value.canTranscribe)
    }

    @Test
    fun `a microphone that cannot be had, or is not allowed, is a sentence`() = runTest {
        val none = FakeMicrophone(emptyList()).apply { problem = "The microphone cannot be used now." }
        val dictate = Process(this, none) { FakeHearer() }.dictate
        dictate.record()
        assertEquals("The microphone cannot be used now.", dictate.state.value.note)
        assertFalse(dictate.state.value.canTranscribe)
        dictate.refused()
        assertTrue("allow it" in dictate.state.value.note)
        val cut = FakeMicrophone().apply { problem = "Another app took it." }
        val other = Process(this, cut) { FakeHearer() }.dictate
        other.record()
        assertEquals("Another app took it.", other.state.value.note)
        assertEquals(FakeHearer.LINES, other.state.value.dictation.lines) // what was recorded until then is heard
    }

    @Test
    fun `a model that is taken while one dictates leaves the recording`() = runTest {
        val process = Process(this) { FakeHearer() }
        process.dictate.record()
        process.holder.onPressure(Pressure.CLOSE)
        process.dictate.stop()
        assertTrue("recording is kept" in process.dictate.state.value.note)
        assertTrue("needed memory" in process.dictate.state.value.problem!!)
        process.dictate.loadAnyway()
        process.dictate.transcribe()
        assertEquals(FakeHearer.LINES, process.dictate.state.value.dictation.lines)
    }

    @Test
    fun `a recording is not overwritten while it is heard`() {
        val recording = Recording(File(folder, "x.pcm"))
        recording.begin().use { it.add(shortArrayOf(1, -2, 32767)) }
        val mapped = recording.map()
        recording.begin().use { it.add(shortArrayOf(7)) }
        assertEquals(listOf<Short>(1, -2, 32767), List(mapped.limit()) { mapped[it] })
        assertEquals(1, recording.samples)
    }

    @Test
    fun `a computer's wish to measure ends with a profile`() = runTest {
        val file = profileFile(folder, bundle)
        val said = ArrayList<String>()
        measure(bundle, Process(this) { FakeModel() }.holder, file) { said += it }
        assertEquals(listOf("steps at context 16", "steps at context 512"), said)
        val kept = Profile.fromJson(file.readText())
        assertEquals(profile(3), kept.copy(notes = emptyList()))
        assertTrue("without a screen" in kept.notes.single())
    }

    @Test
    fun `a computer's wish that cannot be met is a sentence`() = runTest {
        suspend fun refusal(model: () -> LoadedModel): String = try {
            measure(bundle, Process(this) { model() }.holder, profileFile(folder, bundle)) { }
            "measured"
        } catch (e: EdgeException) {
            e.message!!
        }
        assertEquals("Only chat models are measured so far.", refusal { FakeTranslator() })
        assertEquals("It is damaged.", refusal { throw EdgeException("It is damaged.") })
        assertFalse(profileFile(folder, bundle).exists())
    }
}
