package dev.edgelm.engine

import dev.edgelm.BundleException
import dev.edgelm.EdgeException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.WEIGHTS
import java.io.IOException
import java.io.RandomAccessFile
import java.nio.file.Files
import java.nio.file.attribute.BasicFileAttributes
import java.nio.file.attribute.FileTime

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
    private val stamp = stamp()
    @Volatile
    private var looked = System.nanoTime()
    @Volatile
    private var changed = false

    /**
     * EdgeException where the file's length is, or ever was found, another one, or where somebody has written to it.
     * The length takes 9 us where a system call is slow; the time of change, which ends no process, is read less often.
     */
    fun check() {
        if (changed || file.length() != size || rewritten()) {
            changed = true
            throw EdgeException("$path changed on disk while the model was in use; install the bundle again and open it anew.")
        }
    }

    private fun rewritten(): Boolean {
        val now = System.nanoTime()
        if (now - looked < SELDOM) return false
        looked = now
        val found = stamp() ?: return false // a file that was deleted or replaced is the open one no more
        return stamp != null && found.first == stamp.first && found.second != stamp.second
    }

    /** Which file has the name, and when it was last written to; null where that is not known. */
    private fun stamp(): Pair<Any?, FileTime>? = try {
        val found = Files.readAttributes(path.toPath(), BasicFileAttributes::class.java)
        found.fileKey() to found.lastModifiedTime()
    } catch (_: IOException) {
        null
    }

    override fun close() = file.close()

    private companion object {
        const val SELDOM = 20_000_000L // ns
    }
}
