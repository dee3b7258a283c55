package dev.edgelm.engine

import dev.edgelm.BundleException
import dev.edgelm.EdgeException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.WEIGHTS
import java.io.IOException
import java.io.RandomAccessFile

/**
 * The weights that onnxruntime maps, held open: who reads mapped memory beyond the end of a file that has shrunk is
 * killed by the system. A file that was deleted or replaced stays as it was for those who have it open.
 *
 * It is no channel, which an interrupted thread would close.
 */
internal class WeightsFile(bundle: Bundle) : AutoCloseable {
    private val path = bundle.file(WEIGHTS)
    private val file = try {
        RandomAccessFile(path, "r")
    } catch (e: IOException) {
        throw BundleException("$path cannot be read: ${e.message}.", e)
    }
    private val size = file.length()
    @Volatile
    private var changed = false

    /** EdgeException where the file's length is, or ever was found, another one. It takes 9 us where a system call is slow. */
    fun check() {
        if (changed || file.length() != size) {
            changed = true
            throw EdgeException("$path changed on disk while the model was in use; install the bundle again and open it anew.")
        }
    }

    override fun close() = file.close()
}
