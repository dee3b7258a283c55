package dev.edgelm.skip

import dev.edgelm.BundleException
import dev.edgelm.Corpus
import dev.edgelm.EdgeException
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.EdgeText2Text
import dev.edgelm.GenerateOptions
import dev.edgelm.InputException
import dev.edgelm.Kv
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import dev.edgelm.profile.DeviceName
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Path
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Policies that skip layers: what they choose, and what is said where they cannot. What they answer: ConformanceTest. */
class SkipTest {
    @TempDir
    lateinit var folder: Path

    private fun decoder(fits: (Manifest) -> Boolean): File = Corpus.decoders().first { fits(Bundle.open(it).manifest) }

    private val routed get() = decoder { it.routers != null }
    private val halves get() = decoder { manifest -> manifest.segments.any { it.part == "feed_forward" } }

    private inline fun <reified E : EdgeException> refused(words: String, crossinline action: () -> Unit) {
        val error = assertThrows(E::class.java) { action() }
        assertTrue(words in error.message!!, error.message)
    }

    private fun open(path: File, skip: String, kv: Kv = Kv.AUTO) = EdgeModel.open(path, EdgeOptions(skip = skip, kv = kv))

    private fun ids(model: EdgeModel) =
        runBlocking { model.generate("The moon changes its shape", GenerateOptions(12), raw = true).toList().map { it.token } }

    @Test
    fun `nothing left out is the answer without a policy, and something is another`() {
        val plain = open(routed, "off").use(::ids)
        for (skip in listOf("unified:0", "skipdecode:6-6", "first:skip=0")) open(routed, skip).use { assertEquals(plain, ids(it)) }
        for (skip in listOf("unified:0.5", "skipdecode:2-3", "first:skip=3")) open(routed, skip).use { assertNotEquals(plain, ids(it)) }
    }

    @Test
    fun `a setting out of range gets a sentence`() {
        val sentences = mapOf(
            "sometimes" to "There is no skip policy 'sometimes'; choose one of off, ffn, first, skipdecode, unified.",
            "" to "There is no skip policy ''",
            "unified" to "'' is no share of the layers",
            "unified:1" to "'1' is no share",
            "unified:-0.1" to "'-0.1' is no share",
            "unified:nan" to "'nan' is no share",
            "skipdecode:3" to "'3' is no range of layers; write it like skipdecode:3-6.",
            "skipdecode:5-4" to "does not go from 2",
            "skipdecode:4-7" to "no more than the 6",
            "skipdecode:1-99999999999" to "from 2 or more",
            "ffn:0.2" to "ffn skips other parts than the segments",
        )
        for ((skip, words) in sentences) refused<InputException>(words) { open(routed, skip).close() }
        for (setting in listOf("5", "skip=4", "skip=-1", "skip=x", "skip=", "threshold=1.1", "threshold=x", "budget=2", "=")) {
            refused<InputException>("first:$setting is not understood; write first") { open(routed, "first:$setting").close() }
        }
        refused<InputException>("first skips other parts than the segments") { open(halves, "first").close() }
    }

    @Test
    fun `a bundle without what a policy needs says how to get it`() {
        val whole = decoder { it.segments.isEmpty() }
        for (skip in listOf("unified:0.2", "skipdecode:2-2", "first", "ffn:0.2")) {
            refused<InputException>("has no segments, so nothing can be skipped; export it with --segments N or ffn.") { open(whole, skip).close() }
        }
        refused<InputException>("has an encoder") { EdgeText2Text.open(Corpus.text2text().first(), EdgeOptions(skip = "unified:0.2")) }
        val manifest = rewritten(routed) { it.replace("\"routers\": \"routers.npy\"", "\"routers\": null") }
        refused<InputException>("has no routers, which the policy first needs; edge tune trains them.") { SkipPolicy.maker("first", manifest) }
    }

    @Test
    fun `segments have neither keys in int8 nor a prefill graph nor a profile`() {
        refused<InputException>("A KV cache in int8 needs all layers in one graph") { open(routed, "unified:0.2", Kv.INT8).close() }
        open(routed, "unified:0.2").use { model ->
            assertTrue(EdgeModel.open(routed).use { it.plan.prefill } && !model.plan.prefill && !model.plan.int8)
            refused<InputException>("A profile is one of all layers") { runBlocking { model.profile(DeviceName("phone", "cpu", "os")).toList() } }
        }
    }

    @Test
    fun `routers of another model or damaged ones are refused`() {
        val bundle = rewritten(routed) { it }
        val file = bundle.file(bundle.manifest.routers!!)
        val good = file.readBytes()
        fun refusedWith(words: String, bytes: ByteArray) {
            file.writeBytes(bytes)
            refused<BundleException>(words) { SkipPolicy.maker("first", bundle) }
        }
        refusedWith("cannot be read as routers", "not an array".toByteArray())
        refusedWith("cannot be read as routers", ByteArray(0))
        refusedWith("cannot be read as routers", good.copyOf(40))
        refusedWith("cannot be read as routers", good.copyOf(good.size - 1))
        refusedWith("of shape (3, ", String(good, Charsets.ISO_8859_1).replace("(4, ", "(3, ").toByteArray(Charsets.ISO_8859_1))
        refusedWith("of another model: <f8", String(good, Charsets.ISO_8859_1).replace("<f4", "<f8").toByteArray(Charsets.ISO_8859_1))
        file.delete()
        refused<BundleException>("cannot be read as routers") { SkipPolicy.maker("first", bundle) }
        assertThrows(IOException::class.java) { Npy.read(array("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", 1f, 2f)) }
        assertEquals(2f, Npy.read(array("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 1f, 2f)).values.get(1))
    }

    @Test
    fun `a manifest whose segments do not make the decoder is refused`() {
        val good = File(routed, "edge.json").readText().replaceFirst("\"crc32\"", "\"unread\"")
        val changes = listOf(
            Regex("\"part\": \"(start|end)\"") to "\"part\": \"layers\"",
            Regex("\"part\": \"layers\"") to "\"part\": \"feed_forward\"",
            Regex("(\"part\": \"layers\",\\s*\"layers\": \\[\\s*)2") to "$1\\3",
        )
        for ((part, other) in changes) {
            assertTrue(part.containsMatchIn(good), part.pattern)
            refused<BundleException>("its segments ") { Manifest.parse(part.replace(good, other), "edge.json") }
        }
    }

    @Test
    fun `what is left out is spread, and falls with the answer`() {
        assertEquals(listOf(1, 4, 7), spread(3, 9))
        assertEquals(listOf(0, 1, 2), spread(3, 3))
        val policy = SkipDecode(Bundle.open(routed).manifest, 2, 6) // four layers may go
        assertEquals(listOf(0, 0, 0, 1, 2, 3, 4), listOf(3, 10, 19, 20, 30, 49, 80).map { policy.dropped(10, it, 60) })
        assertEquals(listOf(1, 2, 0), lowest(doubleArrayOf(0.7, 0.1, 0.1, 0.8), 3))
    }

    /** A copy of a bundle, whose manifest is changed. */
    private fun rewritten(path: File, change: (String) -> String): Bundle {
        val copy = File(folder.toFile(), "model.edge").also { path.copyRecursively(it, overwrite = true) }
        val manifest = File(copy, "edge.json")
        manifest.writeText(change(manifest.readText()).replaceFirst("\"crc32\"", "\"unread\""))
        return Bundle.open(copy)
    }

    private fun array(header: String, vararg values: Float): ByteArray {
        val out = ByteArrayOutputStream()
        val size = ByteBuffer.allocate(2).order(ByteOrder.LITTLE_ENDIAN).putShort(header.length.toShort())
        out.write(byteArrayOf(0x93.toByte()) + "NUMPY".toByteArray() + byteArrayOf(1, 0) + size.array() + header.toByteArray())
        val body = ByteBuffer.allocate(4 * values.size).order(ByteOrder.LITTLE_ENDIAN)
        values.forEach { body.putFloat(it) }
        out.write(body.array())
        return out.toByteArray()
    }
}
