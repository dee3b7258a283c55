package dev.edgelm.engine

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import ai.onnxruntime.OrtSession.SessionOptions
import dev.edgelm.BundleException
import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle

/** Whether this is an Arm core, as in most phones. */
internal val arm = System.getProperty("os.arch").let { it.startsWith("aarch64") || it.startsWith("arm") }

/**
 * onnxruntime's environment, with one pool of threads for all models of a process: pools of their own would spin next
 * to each other.
 */
internal object Ort {
    private const val MOST_THREADS = 8
    private var environment: OrtEnvironment? = null

    /** Threads of the pool, once it is there. */
    var threads: Int = 0
        private set

    /** Of onnxruntime, once the environment is there. */
    val version: String get() = environment!!.version

    /** The environment. The first call sizes the pool: [threads], default one per core that it may use, up to 8. */
    @Synchronized
    fun environment(threads: Int?): OrtEnvironment {
        val cores = usableCores()
        if (threads != null && threads !in 1..maxOf(16, 2 * cores)) {
            throw InputException("The number of threads must be between 1 and ${maxOf(16, 2 * cores)}, not $threads.")
        }
        environment?.let { return it }
        if (arm && android) attendWithoutBlocks()
        val pool = threads ?: minOf(cores, MOST_THREADS)
        val options = OrtEnvironment.ThreadingOptions()
        options.setGlobalIntraOpNumThreads(pool)
        options.setGlobalInterOpNumThreads(1)
        val made = try {
            OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR, "edge", options)
        } catch (e: IllegalStateException) {
            throw EdgeException("This app used onnxruntime before edge, without a shared pool; open edge's model first.", e)
        }
        this.threads = pool
        environment = made
        return made
    }

    /**
     * On Arm attention by blocks (flash) gives a token other last bits in a step of 3 tokens than in one of 2: what a model
     * says would depend on how a text is cut into steps. onnxruntime asks for this where it opens a graph.
     *
     * `android.system.Os` sets it, by name: this library has no class of Android's. Other Java machines cannot, and are started
     * with it.
     */
    private fun attendWithoutBlocks() {
        val text = String::class.java
        val set = Class.forName("android.system.Os").getMethod("setenv", text, text, Boolean::class.javaPrimitiveType)
        set.invoke(null, "ORT_GQA_DISABLE_FLASH_ATTENTION", "1", false) // an app's own setting stays
    }

    /** A session over the graph with this role. Weights are mapped by onnxruntime and never pass through the heap. */
    fun open(environment: OrtEnvironment, bundle: Bundle, role: String): OrtSession {
        val graph = bundle.manifest.graph(role)
            ?: throw BundleException("The bundle ${bundle.manifest.name} has no graph with the role '$role'.")
        try {
            SessionOptions().use { options ->
                options.disablePerSessionThreads()
                options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
                // Else the second step of a shape allocates all of its activations again, and keeps both.
                options.setMemoryPatternOptimization(false)
                options.addConfigEntry("session.dynamic_block_base", "4")
                options.addConfigEntry("session.model_external_initializers_file_folder_path", bundle.root.absolutePath)
                val session = environment.createSession(bundle.file(graph.path).absolutePath, options)
                try {
                    checkFits(bundle, session, role)
                } catch (e: BundleException) {
                    session.close()
                    throw e
                }
                return session
            }
        } catch (e: OrtException) {
            throw BundleException("${bundle.file(graph.path)} cannot be loaded: ${reason(e.message.orEmpty(), version)}", e)
        }
    }

    /** Why a graph was not loaded: what onnxruntime of this [version] says, or what to do about it. */
    fun reason(message: String, version: String): String =
        if ("Unrecognized attribute" !in message || "QMoE" !in message) message
        else "onnxruntime $version does not compute experts as edge writes them; use 1.31 or later, or another model."
}
