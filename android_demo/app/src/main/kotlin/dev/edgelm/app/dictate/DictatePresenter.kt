package dev.edgelm.app.dictate

import dev.edgelm.EdgeException
import dev.edgelm.app.BundlePresenter
import dev.edgelm.app.KeptFile
import dev.edgelm.app.model.Language
import dev.edgelm.app.model.Line
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.app.model.SpeechModel
import java.io.File
import java.io.IOException
import kotlin.math.log10
import kotlin.math.sqrt
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.takeWhile
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.serialization.Serializable

/** What goes on. */
enum class Stage { NOTHING, RECORDING, TRANSCRIBING }

/** What was said, and the code of the language that the user chose; null: the model finds out. */
@Serializable
data class Dictation(val lines: List<Line> = emptyList(), val language: String? = null) {
    val text: String get() = lines.joinToString("") { it.text }.trim()
}

/**
 * What the dictation screen shows.
 *
 * @property seconds of the recording.
 * @property level how loud it is, from 0 to 1.
 * @property problem why the model cannot hear; the screen offers to load it.
 */
data class DictateState(
    val title: String,
    val detail: String = "",
    val dictation: Dictation = Dictation(),
    val stage: Stage = Stage.NOTHING,
    val seconds: Double = 0.0,
    val level: Float = 0f,
    val languages: List<Language> = emptyList(),
    val ready: Boolean = false,
    val loading: Boolean = false,
    val note: String = "",
    val problem: String? = null,
) {
    /** Whether there is a recording that the model could hear, again or at last. */
    val canTranscribe: Boolean get() = ready && stage == Stage.NOTHING && seconds > 0
}

/** Records and transcribes with one bundle. The last recording and its transcript are kept in [folder]. */
class DictatePresenter(
    override val bundle: File,
    private val holder: ModelHolder,
    private val microphone: Microphone,
    folder: File,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
    private val clock: () -> Long = System::nanoTime,
) : BundlePresenter {
    private val file = KeptFile(File(folder, "${bundle.name}.json"), Dictation.serializer())
    private val recording = Recording(File(folder, "${bundle.name}.pcm"))
    private val states = MutableStateFlow(DictateState(bundle.name.removeSuffix(".edge"), loading = true))
    private var run: Job? = null
    private var recorder: Job? = null
    private val watching = scope.launch {
        withContext(io) { file.read() }?.let { kept -> states.update { it.copy(dictation = kept) } }
        holder.state.collect(::onModel)
    }

    val state: StateFlow<DictateState> = states

    /** Load the model, also where it took the app down before. */
    fun loadAnyway() = holder.open(bundle, anyway = true)

    private fun model(): SpeechModel? = holder.state.value.of(bundle.name) as? SpeechModel

    private fun onModel(state: ModelState) {
        val model = state.of(bundle.name) as? SpeechModel
        states.update { it.copy(ready = model != null, loading = state.isLoading(bundle.name), problem = state.problem(bundle.name)) }
        with(model ?: return) {
            states.update {
                it.copy(
                    detail = "${bytes / 1_000_000} MB",
                    languages = Language.all(languages),
                    seconds = if (it.stage == Stage.RECORDING) it.seconds else recording.samples / sampleRate.toDouble(),
                )
            }
        }
    }

    /** Null: the model finds out. */
    fun chooseLanguage(code: String?) = states.update { it.copy(dictation = it.dictation.copy(language = code)) }

    /** Record until [stop], then transcribe. The recording before is deleted. */
    fun record() {
        val rate = (model() ?: return).sampleRate
        if (states.value.stage != Stage.NOTHING) return
        states.update {
            it.copy(dictation = it.dictation.copy(lines = emptyList()), stage = Stage.RECORDING, seconds = 0.0, level = 0f, note = "")
        }
        run = scope.launch {
            var problem: String? = null
            val sound = launch {
                try {
                    withContext(io) { write(rate) }
                } catch (e: EdgeException) {
                    problem = e.message
                } catch (_: IOException) {
                    problem = "The recording ended: the phone's storage may be full."
                }
            }
            recorder = sound
            sound.join() // [stop] cancels this child alone
            transcribe(problem)
        }
    }

    private suspend fun write(rate: Int) = recording.begin().use { writer ->
        microphone.record(rate).takeWhile { writer.samples < LONGEST_S * rate }.collect { chunk ->
            writer.add(chunk)
            states.update { it.copy(seconds = writer.samples / rate.toDouble(), level = level(chunk)) }
        }
    }

    /** Hear the recording once more, for example in another language. */
    fun transcribe() {
        if (states.value.canTranscribe) run = scope.launch { transcribe(null) }
    }

    /** [problem]: what cut the recording off; said where nothing else is. */
    private suspend fun transcribe(problem: String?) {
        val model = model()
        if (model == null || states.value.seconds == 0.0) {
            ended(problem ?: if (model == null) "The recording is kept; load the model to transcribe it." else "Nothing was recorded.")
            return
        }
        states.update { it.copy(dictation = it.dictation.copy(lines = emptyList()), stage = Stage.TRANSCRIBING, level = 0f, note = "") }
        val begun = clock()
        var note = "Stopped. The recording is kept."
        try {
            val pcm = withContext(io) { recording.map() }
            model.transcribe(pcm, states.value.dictation.language).collect { line ->
                states.update { it.copy(dictation = it.dictation.copy(lines = it.dictation.lines + line)) }
            }
            note = problem ?: "%.0f s of sound in %.1f s".format(states.value.seconds, (clock() - begun) / 1e9)
        } catch (e: EdgeException) {
            note = e.message!!
        } catch (_: IOException) {
            note = "The recording cannot be read; record again."
        } finally {
            withContext(NonCancellable) { ended(note) }
        }
    }

    private suspend fun ended(note: String) {
        states.update { it.copy(stage = Stage.NOTHING, level = 0f, note = note) }
        save()
    }

    /** End the recording, or else the transcription before its next step. */
    fun stop() {
        if (states.value.stage == Stage.RECORDING) recorder?.cancel() else run?.cancel()
    }

    /** The user did not let the app use the microphone. */
    fun refused() = states.update {
        it.copy(note = "Without the microphone nothing can be recorded; allow it for this app in the phone's settings.")
    }

    /** The screen is hidden: Android gives no sound then. What there is is written, for a process that may not come back. */
    fun hide() {
        if (states.value.stage == Stage.RECORDING) stop()
        scope.launch { save() }
    }

    /** Delete the recording and its transcript. */
    fun clear() {
        if (states.value.stage != Stage.NOTHING) return
        states.update { it.copy(dictation = it.dictation.copy(lines = emptyList()), seconds = 0.0, note = "") }
        scope.launch {
            withContext(io) { recording.delete() }
            save()
        }
    }

    private suspend fun save() {
        try {
            withContext(io) { file.write(states.value.dictation) }
        } catch (_: IOException) {
            states.update { it.copy(note = "The text could not be kept: the phone's storage may be full.") }
        }
    }

    override fun close() {
        run?.cancel()
        watching.cancel()
    }

    private companion object {
        const val LONGEST_S = 3 * 3600
        const val FULL = 32768.0
        const val QUIET_DB = 60 // below full scale, where the display of the level begins

        fun level(chunk: ShortArray): Float {
            val power = chunk.sumOf { it.toDouble() * it } / maxOf(1, chunk.size)
            val db = 20 * log10(maxOf(1.0, sqrt(power)) / FULL)
            return (1 + db / QUIET_DB).coerceIn(0.0, 1.0).toFloat()
        }
    }
}
