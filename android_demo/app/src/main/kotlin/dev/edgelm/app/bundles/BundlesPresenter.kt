package dev.edgelm.app.bundles

import dev.edgelm.EdgeException
import dev.edgelm.app.model.LoadMarker
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** A copy that goes on. */
data class Copying(val name: String, val done: Long, val total: Long)

/**
 * What the first screen shows.
 *
 * @property offered bundles that came with the app and are not copied yet.
 * @property crashed folders of models that the app ended with while it loaded them.
 */
data class BundlesState(
    val entries: List<Entry> = emptyList(),
    val offered: List<BundleSource> = emptyList(),
    val crashed: Set<String> = emptySet(),
    val copying: Copying? = null,
    val message: String? = null,
)

/** The bundles on this phone. [assets]: those that came with the app. */
class BundlesPresenter(
    private val shelf: BundleShelf,
    private val assets: () -> List<BundleSource>,
    private val marker: LoadMarker,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
) {
    private val states = MutableStateFlow(BundlesState())
    private var copy: Job? = null

    val state: StateFlow<BundlesState> = states

    /** Look at the folder again. */
    fun refresh() {
        scope.launch { look() }
    }

    private suspend fun look() {
        val (entries, offered) = withContext(io) {
            val entries = shelf.entries()
            entries to assets().filter { asset -> entries.none { it.folder.name == asset.name } }
        }
        val crashed = entries.map { it.folder.name }.filter(marker::isLeft).toSet()
        states.update { it.copy(entries = entries, offered = offered, crashed = crashed) }
    }

    /** Copy a bundle into the app. One at a time. */
    fun add(source: BundleSource) {
        if (copy?.isActive == true) return
        states.update { it.copy(message = null, copying = Copying(source.name, 0, 1)) }
        copy = scope.launch {
            val message = try {
                withContext(io) {
                    shelf.add(source) { done, total ->
                        ensureActive()
                        states.update { it.copy(copying = Copying(source.name, done, total)) }
                    }
                }
                null
            } catch (e: EdgeException) {
                e.message
            } finally {
                states.update { it.copy(copying = null) }
            }
            states.update { it.copy(message = message) }
            look()
        }
    }

    /** End the copy; what was copied is deleted. */
    fun cancel() {
        copy?.cancel()
    }

    fun remove(entry: Entry) {
        scope.launch {
            withContext(io) { shelf.remove(entry) }
            look()
        }
    }

    fun dismiss() = states.update { it.copy(message = null) }
}
