package dev.edgelm.bundle

import dev.edgelm.BundleException
import dev.edgelm.text.Tokenizer
import java.io.File
import java.io.IOException
import java.security.MessageDigest
import java.util.zip.CRC32

const val MANIFEST = "edge.json"
const val WEIGHTS = "weights.bin"
const val TOKENIZER = "tokenizer.json"
const val GOLDEN = "golden.json"

/** A bundle on disk whose manifest was read; [checkFiles] proves the rest. */
class Bundle private constructor(val root: File, val manifest: Manifest) {
    /** The path of a file of the bundle, by its name in the manifest; BundleException where that does not list it. */
    fun file(name: String): File {
        if (name != MANIFEST && name !in listed) {
            throw BundleException("$root/$MANIFEST does not list '${name.take(100)}' among its files, so it is not read.")
        }
        return File(root, name)
    }

    /** The same with the token that follows an answer in its chat format among the ends, which older bundles lack. */
    internal fun endingAfterAnswers(tokenizer: Tokenizer): Bundle {
        val after = manifest.chatFormat?.user?.before?.trimStart() ?: return this
        val end = tokenizer.encode(after).firstOrNull()?.takeIf(tokenizer::isAdded)
        val tokens = manifest.tokens
        if (end == null || end in tokens.eos) return this
        return Bundle(root, manifest.copy(tokens = tokens.copy(eos = tokens.eos + end)))
    }

    private val listed = manifest.files.mapTo(HashSet()) { it.path }

    /** Of the manifest, which holds the sha256 of every other file. */
    internal fun manifestSha256(): String = sha256(file(MANIFEST)) {}

    /** Compare presence and sizes of all files: what can be seen without reading them. */
    fun checkSizes() {
        for (each in manifest.files) {
            val file = file(each.path)
            if (!file.isFile) throw BundleException("$file is missing from the bundle; copy the bundle again.")
            if (!file.canRead()) throw BundleException("$file cannot be read: the app has no permission.")
            if (file.length() != each.size) {
                throw BundleException(
                    "$file has ${file.length()} bytes where the manifest says ${each.size}; copy the bundle again.",
                )
            }
        }
    }

    /**
     * Compare every file's size and sha256 with the manifest.
     *
     * [memory] is a folder of the app's in which it is remembered what passed, by sizes and times of change, so that
     * only the first call reads all files; null: every call does. [progress] is told how many bytes were just read.
     */
    fun checkFiles(memory: File? = null, progress: (Int) -> Unit = {}) {
        checkSizes()
        val stamp = manifest.files.joinToString("\n") { "${it.path} ${it.sha256} ${it.size} ${file(it.path).lastModified()}" }
        val note = memory?.let { File(it, "%08x.checked".format(crc32(root.canonicalPath))) }
        if (note != null && note.isFile && note.readText() == stamp) return
        for (each in manifest.files) {
            if (sha256(file(each.path), progress) != each.sha256) {
                throw BundleException("${file(each.path)} is damaged: its sha256 differs; copy the bundle again.")
            }
        }
        if (note == null) return
        try {
            note.parentFile?.mkdirs()
            note.writeText(stamp)
        } catch (_: IOException) { // a full disk: the next call reads all files again
            note.delete()
        }
    }

    companion object {
        private const val CHUNK = 1 shl 18
        private const val MOST_MANIFEST = 4 shl 20 // bytes, far above any export's
        private const val MOST_TOKENIZER = 256L shl 20

        /** Read a bundle's manifest and check it: its version, its fields, and that no path leaves the bundle. */
        fun open(root: File): Bundle {
            val file = File(root, MANIFEST)
            if (!root.exists()) throw BundleException("There is no bundle at $root.")
            if (!file.exists()) throw BundleException("$root is not a bundle: it has no $MANIFEST.")
            val manifest = Manifest.parse(readJson(file, MOST_MANIFEST), file.path)
            val needed = listOf(WEIGHTS, TOKENIZER, GOLDEN) + manifest.graphs.map { it.path } + listOfNotNull(manifest.routers)
            val listed = manifest.files.mapTo(HashSet()) { it.path }
            needed.firstOrNull { it !in listed }?.let {
                throw BundleException("$file does not list '${it.take(100)}' among its files; export the model again.")
            }
            listed.forEach { checkInside(root, it) }
            checkStated(root, manifest)
            if (manifest.size(TOKENIZER) > MOST_TOKENIZER) {
                throw BundleException("$root/$TOKENIZER has ${manifest.size(TOKENIZER)} bytes, which no tokenizer has.")
            }
            return Bundle(root, manifest)
        }

        /** Refuse a manifest that states more weights than their file has bytes. */
        private fun checkStated(root: File, manifest: Manifest) {
            val there = manifest.size(WEIGHTS)
            val groups = manifest.groups + manifest.prefill?.groups.orEmpty()
            if (groups.sumOf { it.bytes.toDouble() } > there || manifest.dims.vocabSize > there) {
                throw BundleException(
                    "$root/$WEIGHTS has $there bytes, too few for the weights and the vocabulary of " +
                        "${manifest.dims.vocabSize} that $MANIFEST states; export the model again.",
                )
            }
        }

        private fun checkInside(root: File, name: String) {
            val plain = name.isNotEmpty() && !name.startsWith("/") && name.none { it in "\\:\u0000" } &&
                ".." !in name.split("/")
            val inside = try {
                plain && File(root, name).canonicalFile.startsWith(root.canonicalFile)
            } catch (_: IOException) { // links in a circle
                false
            }
            if (!inside) {
                throw BundleException("$root/$MANIFEST names the file '${name.take(100)}', which leads out of the bundle; do not use it.")
            }
        }

        private fun crc32(text: String): Long = CRC32().apply { update(text.toByteArray()) }.value

        private fun sha256(file: File, progress: (Int) -> Unit): String {
            val digest = MessageDigest.getInstance("SHA-256")
            val buffer = ByteArray(CHUNK)
            try {
                file.inputStream().use { input ->
                    while (true) {
                        val size = input.read(buffer)
                        if (size < 0) break
                        digest.update(buffer, 0, size)
                        progress(size)
                    }
                }
            } catch (e: IOException) {
                throw BundleException("$file cannot be read: ${e.message}.", e)
            }
            return digest.digest().joinToString("") { "%02x".format(it) }
        }
    }
}
