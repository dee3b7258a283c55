package dev.edgelm.app.latency

import dev.edgelm.EdgeException
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
 * @property profile as far as it is measured; the last whole one while nothing is.
 */
data class LatencyState(
    val title: String,
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
    val bundle: File,
    private val holder: ModelHolder,
    private val folder: File,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
) {
    private val states = MutableStateFlow(LatencyState(bundle.name.removeSuffix(".edge"), loading = true))
    private var run: Job? = null
    private val watching = scope.launch {
        val kept = withContext(io) { read() }
        states.update { it.copy(profile = kept) }
        holder.state.collect(::onModel)
    }

    val state: StateFlow<LatencyState> = states

    /** The last whole profile's file, in the format of docs/reference/profile-format.md. */
    val file: File get() = File(folder, bundle.name.removeSuffix(".edge") + ".profile.json")

    fun loadAnyway() = holder.open(bundle, anyway = true)

    private fun onModel(model: ModelState) {
        val ours = model.takeIf { it.bundle == bundle.name }
        states.update {
            it.copy(
                ready = ours is ModelState.Ready,
                loading = ours is ModelState.Loading,
                problem = if (ours is ModelState.Missing) ours.sentence else null,
            )
        }
    }

    fun start() {
        val model = (holder.state.value as? ModelState.Ready)?.takeIf { it.bundle == bundle.name }?.model ?: return
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
                note = withContext(io) { keep(last!!) }
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

    private fun keep(profile: Profile): String = try {
        folder.mkdirs()
        file.writeText(profile.toJson())
        "Measured in %.0f seconds.".format(profile.seconds)
    } catch (_: IOException) {
        "The profile could not be kept: the phone's storage may be full."
    }

    private fun read(): Profile? = try {
        file.takeIf { it.isFile }?.let { Profile.fromJson(it.readText()) }
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    /** The screen is left for good. */
    fun close() {
        run?.cancel()
        watching.cancel()
    }
}
