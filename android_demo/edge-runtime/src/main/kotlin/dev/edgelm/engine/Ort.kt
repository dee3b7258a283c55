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

/**
 * onnxruntime's environment, with one pool of threads for all models of a process: pools of their own would spin next
 * to each other.
 */
internal object Ort {
    private const val MOST_THREADS = 8
    private const val NO_FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
    private var environment: OrtEnvironment? = null

    /** Threads of the pool, once it is there. */
    var threads: Int = 0
        private set

    /** Of onnxruntime, once the environment is there. */
    val version: String get() = environment!!.version

    /** The environment. The first call sizes the pool: [threads], default one per core, up to 8. */
    @Synchronized
    fun environment(threads: Int?): OrtEnvironment {
        val cores = Runtime.getRuntime().availableProcessors()
        if (threads != null && threads !in 1..maxOf(16, 2 * cores)) {
            throw InputException("The number of threads must be between 1 and ${maxOf(16, 2 * cores)}, not $threads.")
        }
        environment?.let { return it }
        val pool = threads ?: minOf(cores, MOST_THREADS)
        plainAttentionOnArm()
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
     * On Arm attention by blocks (flash) gives a token other last bits in a step of 3 tokens than in one of 2, and so an
     * answer would depend on how its text is cut into steps; onnxruntime reads in its environment that it is off. Android
     * lets a process set that; a Java machine on Arm is started with it.
     */
    private fun plainAttentionOnArm() {
        if (!Memory.android || System.getProperty("os.arch") != "aarch64" || System.getenv(NO_FLASH) != null) return
        val set = Class.forName("android.system.Os").getMethod(
            "setenv", String::class.java, String::class.java, Boolean::class.javaPrimitiveType,
        )
        set.invoke(null, NO_FLASH, "1", false)
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
                return environment.createSession(bundle.file(graph.path).absolutePath, options)
            }
        } catch (e: OrtException) {
            throw BundleException("${bundle.file(graph.path)} cannot be loaded: ${e.message}", e)
        }
    }
}
