package dev.edgelm.app.translate

import dev.edgelm.EdgeException
import dev.edgelm.app.BundlePresenter
import dev.edgelm.app.KeptFile
import dev.edgelm.app.model.Language
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.app.model.TextModel
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.serialization.Serializable

/** A text and what the model made of it; [from] and [to] are codes of languages, where the model has a choice. */
@Serializable
data class Translation(val source: String = "", val output: String = "", val from: String? = null, val to: String? = null)

/**
 * What the screen of a model from text to text shows.
 *
 * @property sources languages to choose from; empty where there is no choice.
 * @property working while the output grows.
 * @property problem why the model cannot work; the screen offers to load it.
 */
data class TranslateState(
    val title: String,
    val detail: String = "",
    val translation: Translation = Translation(),
    val sources: List<Language> = emptyList(),
    val targets: List<Language> = emptyList(),
    val working: Boolean = false,
    val ready: Boolean = false,
    val loading: Boolean = false,
    val note: String = "",
    val problem: String? = null,
)

/** Turns one text after another into another one. The last one is kept in [folder]. */
class TranslatePresenter(
    override val bundle: File,
    private val holder: ModelHolder,
    folder: File,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
) : BundlePresenter {
    private val file = KeptFile(File(folder, "${bundle.name}.json"), Translation.serializer())
    private val states = MutableStateFlow(TranslateState(bundle.name.removeSuffix(".edge"), loading = true))
    private var run: Job? = null
    private val watching = scope.launch {
        withContext(io) { file.read() }?.let { kept -> states.update { it.copy(translation = kept) } }
        holder.state.collect(::onModel)
    }

    val state: StateFlow<TranslateState> = states

    /** Load the model, also where it took the app down before. */
    fun loadAnyway() = holder.open(bundle, anyway = true)

    private fun onModel(state: ModelState) {
        val model = state.of(bundle.name) as? TextModel
        states.update { it.copy(ready = model != null, loading = state.isLoading(bundle.name), problem = state.problem(bundle.name)) }
        with(model ?: return) {
            states.update {
                val from = Language.choose(sources, it.translation.from, source)
                val others = targets.filter { code -> code != from }.ifEmpty { targets }
                val to = Language.choose(others, it.translation.to, target)
                it.copy(
                    detail = "${bytes / 1_000_000} MB",
                    sources = Language.all(sources),
                    targets = Language.all(targets),
                    translation = it.translation.copy(from = from, to = to),
                )
            }
        }
    }

    fun chooseSource(code: String) = states.update { it.copy(translation = it.translation.copy(from = code)) }

    fun chooseTarget(code: String) = states.update { it.copy(translation = it.translation.copy(to = code)) }

    /** What is written in the source field. */
    fun keepSource(text: String) = states.update { it.copy(translation = it.translation.copy(source = text)) }

    /** Work on the source. Nothing happens while another text is worked on, or the model is not there. */
    fun start() {
        val model = holder.state.value.of(bundle.name) as? TextModel ?: return
        val (source, _, from, to) = states.value.translation
        if (states.value.working) return
        states.update { it.copy(translation = it.translation.copy(output = ""), working = true, note = "") }
        run = scope.launch {
            val output = StringBuilder()
            var note = "Stopped."
            try {
                model.generate(source, from, to).collect { words ->
                    output.append(words.text)
                    states.update { it.copy(translation = it.translation.copy(output = output.toString())) }
                    words.note?.let { note = it }
                }
            } catch (e: EdgeException) {
                note = e.message!!
            } finally {
                states.update { it.copy(working = false, note = note) }
                withContext(NonCancellable) { save() }
            }
        }
    }

    /** End the output before its next token. What there is of it stays. */
    fun stop() {
        run?.cancel()
    }

    /** Write what there is, for a process that may not come back. */
    fun keep() {
        scope.launch { save() }
    }

    private suspend fun save() {
        try {
            withContext(io) { file.write(states.value.translation) }
        } catch (_: IOException) {
            states.update { it.copy(note = "The text could not be kept: the phone's storage may be full.") }
        }
    }

    override fun close() {
        run?.cancel()
        watching.cancel()
    }
}
