package dev.edgelm.app

import android.app.ActivityManager
import android.app.Application
import android.os.Build
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.app.bundles.BundleShelf
import dev.edgelm.app.bundles.BundlesPresenter
import dev.edgelm.app.chat.ChatPresenter
import dev.edgelm.app.chat.ConversationStore
import dev.edgelm.app.latency.LatencyPresenter
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.LoadedModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.OpenModel
import dev.edgelm.app.model.Pressure
import dev.edgelm.app.screens.AssetSource
import dev.edgelm.profile.DeviceName
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope

/** What outlives the screens: the model in memory, and the presenters, so that a turned phone loses nothing. */
open class EdgeApp : Application() {
    private val scope = MainScope()
    protected open val io: CoroutineDispatcher = Dispatchers.IO
    private val marker by lazy { LoadMarker(File(filesDir, "loading")) }
    private val conversations by lazy { ConversationStore(File(filesDir, "conversations")) }
    private var chat: ChatPresenter? = null
    private var latency: LatencyPresenter? = null

    val shelf by lazy { BundleShelf(File(filesDir, "bundles")) }
    val holder by lazy { ModelHolder(marker, scope, io, ::load) }
    val bundles by lazy { BundlesPresenter(shelf, { AssetSource.all(assets) }, marker, scope, io) }

    /** The conversation with a bundle; of one at a time. */
    fun chat(bundle: File): ChatPresenter {
        chat?.let { if (it.bundle == bundle) return it else it.close() }
        return ChatPresenter(bundle, holder, conversations, scope, io).also { chat = it }
    }

    /** The measurements of a bundle; of one at a time. */
    fun latency(bundle: File): LatencyPresenter {
        latency?.let { if (it.bundle == bundle) return it else it.close() }
        return LatencyPresenter(bundle, holder, File(filesDir, PROFILES), scope, io).also { latency = it }
    }

    protected open fun load(bundle: File): LoadedModel {
        val memory = memory()
        val options = EdgeOptions(memory = maxOf(0, memory.availMem - memory.threshold), cacheDir = cacheDir)
        return OpenModel(EdgeModel.open(bundle, options), device())
    }

    private fun memory() =
        ActivityManager.MemoryInfo().also { getSystemService(ActivityManager::class.java).getMemoryInfo(it) }

    private fun device() = DeviceName(
        name = "${Build.MANUFACTURER} ${Build.MODEL}",
        cpu = if (Build.VERSION.SDK_INT >= 31) "${Build.SOC_MANUFACTURER} ${Build.SOC_MODEL}" else Build.HARDWARE,
        os = "Android ${Build.VERSION.RELEASE} ${System.getProperty("os.arch")}",
        memoryBytes = memory().totalMem,
    )

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        holder.onPressure(Pressure.of(level))
    }

    companion object {
        /** The folder of profiles, which may be shared. */
        const val PROFILES = "profiles"
    }
}
