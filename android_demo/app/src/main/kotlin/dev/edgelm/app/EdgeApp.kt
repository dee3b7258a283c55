package dev.edgelm.app

import android.app.ActivityManager
import android.app.Application
import android.os.Build
import dev.edgelm.EdgeOptions
import dev.edgelm.app.bundles.BundleShelf
import dev.edgelm.app.bundles.BundlesPresenter
import dev.edgelm.app.chat.ChatPresenter
import dev.edgelm.app.chat.ConversationStore
import dev.edgelm.app.dictate.DictatePresenter
import dev.edgelm.app.dictate.Microphone
import dev.edgelm.app.latency.LatencyPresenter
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.LoadedModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.Pressure
import dev.edgelm.app.model.openModel
import dev.edgelm.app.screens.AssetSource
import dev.edgelm.app.screens.PhoneMicrophone
import dev.edgelm.app.translate.TranslatePresenter
import dev.edgelm.profile.DeviceName
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope

/** What outlives the screens: the model in memory, and the presenters, so that a turned phone loses nothing. */
open class EdgeApp : Application() {
    private val scope = MainScope()
    protected open val io: CoroutineDispatcher = Dispatchers.IO
    protected open val microphone: Microphone = PhoneMicrophone()
    private val marker by lazy { LoadMarker(File(filesDir, "loading")) }
    private val conversations by lazy { ConversationStore(File(filesDir, "conversations")) }
    private val presenters = HashMap<Class<*>, BundlePresenter>()

    val profiles by lazy { File(filesDir, PROFILES) }
    val shelf by lazy { BundleShelf(File(filesDir, "bundles")) }
    val holder by lazy { ModelHolder(marker, scope, io, ::load) }
    val bundles by lazy { BundlesPresenter(shelf, { AssetSource.all(assets) }, marker, scope, io) }

    fun chat(bundle: File): ChatPresenter = presenter(bundle) { ChatPresenter(bundle, holder, conversations, scope, io) }

    fun translate(bundle: File): TranslatePresenter =
        presenter(bundle) { TranslatePresenter(bundle, holder, File(filesDir, "translations"), scope, io) }

    fun dictate(bundle: File): DictatePresenter =
        presenter(bundle) { DictatePresenter(bundle, holder, microphone, File(filesDir, "dictations"), scope, io) }

    fun latency(bundle: File): LatencyPresenter =
        presenter(bundle) { LatencyPresenter(bundle, holder, shelf.isDecoder(bundle), profiles, scope, io) }

    /** The presenter of a kind; of one bundle at a time. */
    private inline fun <reified P : BundlePresenter> presenter(bundle: File, make: () -> P): P {
        (presenters[P::class.java] as P?)?.let { if (it.bundle == bundle) return it else it.close() }
        return make().also { presenters[P::class.java] = it }
    }

    protected open fun load(bundle: File): LoadedModel {
        val memory = memory()
        val options = EdgeOptions(memory = maxOf(0, memory.availMem - memory.threshold), cacheDir = cacheDir)
        return openModel(bundle, options, device())
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
