package dev.edgelm.app.bundles

import dev.edgelm.BundleException
import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.MANIFEST
import dev.edgelm.bundle.Manifest
import java.io.File
import java.io.IOException
import java.io.InputStream

/** A bundle that is somewhere else: among the app's assets, or in a folder that the user picked. */
interface BundleSource {
    /** The name of its folder. */
    val name: String

    /** One of its files by its path in the bundle; null where there is none. */
    @Throws(IOException::class)
    fun open(path: String): InputStream?
}

/** A bundle in the app's folder. [manifest] is null where it cannot be used; [problem] says why. */
class Entry(val folder: File, val manifest: Manifest?, val problem: String?) {
    val title: String get() = manifest?.name ?: folder.name.removeSuffix(END)
    val bytes: Long get() = manifest?.files.orEmpty().sumOf { it.size }

    /** What kind of model it is, in a line. */
    val detail: String get() = manifest?.let { "${it.family}, ${it.weights}, ${bytes / 1_000_000} MB" } ?: problem!!
}

/**
 * The bundles of the app, in [folder]. Others are copied there before they are loaded, because onnxruntime maps files,
 * and assets and picked documents have no path.
 */
class BundleShelf(private val folder: File) {
    fun folder(name: String) = File(folder, name)

    /** Whether this is a chat model's bundle; also of one that cannot be read, so that opening it says why. */
    fun isDecoder(bundle: File): Boolean = entry(bundle).manifest.let { it == null || it.kind == "decoder" }

    /** By name. Copies that were cut off are not among them. */
    fun entries(): List<Entry> = folder.listFiles { file -> file.isDirectory && file.name.endsWith(END) }.orEmpty()
        .sortedBy { it.name }.map(::entry)

    private fun entry(at: File): Entry = try {
        Entry(at, Bundle.open(at).also { it.checkSizes() }.manifest, null)
    } catch (e: EdgeException) {
        Entry(at, null, e.message!!.replace("${folder.path}/", "")) // nobody knows that path
    }

    /**
     * Copy a bundle here, the files alone that its manifest names. [progress] is told bytes, done and of all; it may
     * throw to end the copy, and nothing is left of it then.
     *
     * @return the bundle's folder.
     * @throws EdgeException it is no bundle, a file is missing, or there is no room.
     */
    fun add(source: BundleSource, progress: (Long, Long) -> Unit): File {
        val target = File(folder, nameFor(source))
        val part = File(folder, target.name + PART)
        part.deleteRecursively()
        try {
            copy(source, part, progress)
            Bundle.open(part).checkSizes()
            target.deleteRecursively()
            if (!part.renameTo(target)) throw BundleException("${target.name} could not be put into the app's folder.")
        } catch (e: IOException) {
            throw BundleException("${source.name} could not be copied: ${e.message}.", e)
        } finally {
            part.deleteRecursively()
        }
        return target
    }

    private fun copy(source: BundleSource, part: File, progress: (Long, Long) -> Unit) {
        val text = source.open(MANIFEST)?.use { it.readBytes() }
            ?: throw BundleException("${source.name} is not a bundle: it has no $MANIFEST. Pick the folder that has it.")
        part.mkdirs()
        File(part, MANIFEST).writeBytes(text)
        val manifest = Bundle.open(part).manifest // refuses paths that lead out of it
        val total = manifest.files.sumOf { it.size }
        if (part.usableSpace < total + SPARE) {
            throw InputException("There is no room: ${manifest.name} needs ${total / 1_000_000} MB of storage.")
        }
        var done = 0L
        val buffer = ByteArray(CHUNK)
        for (file in manifest.files) {
            val input = source.open(file.path)
                ?: throw BundleException("${source.name} has no ${file.path}; copy the whole bundle to the phone.")
            val target = File(part, file.path)
            target.parentFile!!.mkdirs()
            input.use {
                target.outputStream().use { output ->
                    while (true) {
                        val size = it.read(buffer)
                        if (size < 0) break
                        output.write(buffer, 0, size)
                        done += size
                        progress(done, total)
                    }
                }
            }
        }
    }

    fun remove(entry: Entry) {
        entry.folder.deleteRecursively()
    }

    private fun nameFor(source: BundleSource): String {
        val plain = source.name.removeSuffix(END).filter { it.isLetterOrDigit() || it in "-_. " }.trim('.', ' ')
        return plain.ifEmpty { "model" } + END
    }

    private companion object {
        const val CHUNK = 1 shl 18
        const val PART = ".part"
        const val SPARE = 16L shl 20 // bytes that stay free, for the app's other files
    }
}

/** How a bundle's folder ends. */
const val END = ".edge"
