package dev.edgelm.app.model

import java.io.File
import java.io.FileOutputStream

/**
 * Remembers over the death of the process which bundle was being loaded: a file that is there while it is. A model that
 * needs more memory than there is takes the app down with it, and must not do so at every start.
 */
class LoadMarker(private val folder: File) {
    /** [bundle], a folder's name, is loaded from now on. On the disk when this returns. */
    fun begin(bundle: String) {
        folder.mkdirs()
        FileOutputStream(file(bundle)).use { it.fd.sync() }
    }

    /** It was loaded, or refused in words. */
    fun end(bundle: String) {
        file(bundle).delete()
    }

    /** Whether the app ended while it was loaded. */
    fun isLeft(bundle: String): Boolean = file(bundle).exists()

    private fun file(bundle: String) = File(folder, bundle)
}
