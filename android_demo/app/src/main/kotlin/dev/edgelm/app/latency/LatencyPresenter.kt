package dev.edgelm.app.latency

import dev.edgelm.EdgeException
import dev.edgelm.app.BundlePresenter
import dev.edgelm.app.model.ChatModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.profile.Profile
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.serialization.SerializationException

/**
 * What the latency screen shows.
 *
 * @property measurable whether this is a kind of model that can be measured.
 * @property profile as far as it is measured; the last whole one while nothing is.
 */
data class LatencyState(
    val title: String,
    val measurable: Boolean = true,
    val profile: Profile? = null,
    val measuring: Boolean = false,
    val ready: Boolean = false,
    val loading: Boolean = false,
    val problem: String? = null,
    val note: String = "",
) {
    /** Only a whole profile is worth comparing. */
    val shareable: Boolean get() = profile != null && !measuring
}

/** Measures one bundle on this phone. The last whole profile is kept in [folder]. */
class LatencyPresenter(
    override val bundle: File,
    private val holder: ModelHolder,
    measurable: Boolean,
    private val folder: File,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
) : BundlePresenter {
    private val states = MutableStateFlow(LatencyState(bundle.name.removeSuffix(".edge"), measurable, loading = measurable))
    private var run: Job? = null
    private val watching = scope.launch {
        val kept = withContext(io) { read() }
        states.update { it.copy(profile = kept) }
        if (measurable) holder.state.collect(::onModel)
    }

    val state: StateFlow<LatencyState> = states

    /** The last whole profile's file. */
    val file: File get() = profileFile(folder, bundle)

    fun loadAnyway() = holder.open(bundle, anyway = true)

    private fun onModel(model: ModelState) = states.update {
        it.copy(
            ready = model.of(bundle.name) is ChatModel,
            loading = model.isLoading(bundle.name),
            problem = model.problem(bundle.name),
        )
    }

    fun start() {
        val model = holder.state.value.of(bundle.name) as? ChatModel ?: return
        if (run?.isActive == true) return
        val before = states.value.profile
        states.update { it.copy(profile = null, measuring = true, note = "Measuring: leave the phone alone for a minute.") }
        run = scope.launch {
            var note = "Stopped before all was measured."
            var whole: Profile? = null
            try {
                var last: Profile? = null
                model.profile().collect { profile ->
                    last = profile
                    states.update { it.copy(profile = profile) }
                }
                whole = last
                withContext(io) { keep(last!!, file) }
                note = "Measured in %.0f seconds.".format(last!!.seconds)
            } catch (e: EdgeException) {
                note = e.message!!
            } finally {
                states.update { it.copy(profile = whole ?: before, measuring = false, note = note) }
            }
        }
    }

    fun stop() {
        run?.cancel()
    }

    private fun read(): Profile? = try {
        file.takeIf { it.isFile }?.let { Profile.fromJson(it.readText()) }
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    override fun close() {
        run?.cancel()
        watching.cancel()
    }
}
