package dev.edgelm.app.model

import dev.edgelm.EdgeException
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext

/** The one model that is in memory, or why there is none. [bundle] is the name of its folder. */
sealed interface ModelState {
    val bundle: String?

    data object Nothing : ModelState {
        override val bundle = null
    }

    data class Loading(override val bundle: String) : ModelState

    class Ready(override val bundle: String, val model: LoadedModel) : ModelState

    /** It is not in memory; [sentence] says why. */
    data class Missing(override val bundle: String, val sentence: String) : ModelState

    /** The model of the bundle in a folder of this name, where it is in memory. */
    fun of(name: String): LoadedModel? = (this as? Ready)?.takeIf { it.bundle == name }?.model

    fun isLoading(name: String): Boolean = this is Loading && bundle == name

    /** Why the model of this bundle is not there; null where it is, or will be. */
    fun problem(name: String): String? = when {
        of(name) != null || isLoading(name) -> null
        this is Missing && bundle == name -> sentence
        else -> "This model is not loaded."
    }
}

/** Loads and closes models, one at a time; two would rarely fit. Everything slow runs on [io]. */
class ModelHolder(
    private val marker: LoadMarker,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
    private val load: (File) -> LoadedModel,
) {
    private val states = MutableStateFlow<ModelState>(ModelState.Nothing)
    private val turn = Mutex()

    val state: StateFlow<ModelState> = states

    /**
     * Load a bundle, unless it is loaded. One that took the app down is not loaded again but where [anyway] says so.
     */
    fun open(bundle: File, anyway: Boolean = false) {
        val name = bundle.name
        val now = states.value
        if (now.bundle == name && (now is ModelState.Ready || now is ModelState.Loading)) return
        val before = swap(ModelState.Loading(name))
        scope.launch {
            turn.withLock {
                withContext(io) { before?.close() }
                if (states.value != ModelState.Loading(name)) return@withLock // another one was asked for meanwhile
                val loaded = withContext(io) { loaded(bundle, anyway) }
                if (states.value == ModelState.Loading(name)) {
                    states.value = loaded
                } else {
                    withContext(io) { (loaded as? ModelState.Ready)?.model?.close() }
                }
            }
        }
    }

    private fun loaded(bundle: File, anyway: Boolean): ModelState {
        val name = bundle.name
        if (!anyway && marker.isLeft(name)) return ModelState.Missing(name, CRASHED)
        marker.begin(name)
        return try {
            ModelState.Ready(name, load(bundle))
        } catch (e: EdgeException) {
            ModelState.Missing(name, e.message!!)
        } catch (_: OutOfMemoryError) {
            ModelState.Missing(name, "There is too little memory for this model. Close other apps, or take a smaller model.")
        } finally {
            marker.end(name)
        }
    }

    /** What `onTrimMemory` asks for. */
    fun onPressure(pressure: Pressure) {
        val ready = states.value as? ModelState.Ready ?: return
        when (pressure) {
            Pressure.NONE -> return
            Pressure.SHRINK -> scope.launch(io) { ready.model.trim() }
            Pressure.CLOSE -> close(TAKEN)
        }
    }

    /** Close the model that is there; [sentence] says why to who looks at it. Answers that run end with a sentence. */
    fun close(sentence: String) {
        val bundle = states.value.bundle ?: return
        val before = swap(ModelState.Missing(bundle, sentence))
        scope.launch(io) { before?.close() }
    }

    private fun swap(next: ModelState): LoadedModel? {
        val before = states.value
        states.value = next
        return (before as? ModelState.Ready)?.model
    }

    private companion object {
        const val CRASHED = "The app ended while it was loading this model, so it was not loaded again. There may be too " +
            "little memory for it."
        const val TAKEN = "The phone needed memory for other apps, so the model was closed. Your words are kept."
    }
}

/** How much the system wants back. */
enum class Pressure {
    NONE, SHRINK, CLOSE;

    companion object {
        private const val RUNNING_MODERATE = 5
        private const val RUNNING_CRITICAL = 15
        private const val BACKGROUND = 40

        /** Of `ComponentCallbacks2`'s level: what is kept for speed goes at the first sign, the model only where else
         * the process would. */
        fun of(level: Int): Pressure = when {
            level >= BACKGROUND || level == RUNNING_CRITICAL -> CLOSE
            level >= RUNNING_MODERATE -> SHRINK
            else -> NONE
        }
    }
}
