package dev.edgelm.bundle

import dev.edgelm.BundleException
import java.io.File
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.Paths
import java.time.Duration
import kotlin.random.Random
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTimeoutPreemptively
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Bundles from a stranger: each is opened, or refused in a sentence, and never anything else. */
class HostileBundleTest {
    @TempDir
    lateinit var folder: Path

    private val sha = "0".repeat(64)
    private val files = listOf("edge-decoder.onnx" to 10, "encoder.onnx" to 10, "frontend.onnx" to 10, "routers.npy" to 10) +
        listOf(WEIGHTS to 90_000, TOKENIZER to 2, GOLDEN to 2)
    private val kv = """{"dtype": "float32", "layers": [{"heads": 2, "head_dim": 16}, {"heads": 2, "head_dim": 16, "window": 32}]}"""
    private val whole = """{
        "format_version": 2, "producer": "edge test", "name": "paper", "family": "whisper", "kind": "encoder-decoder",
        "weights": "int8", "context": 256, "chat_template": null, "source": {"name": "paper", "kind": "directory"},
        "dims": {"num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2,
            "head_dim": 16, "vocab_size": 100},
        "graphs": [{"role": "decoder", "path": "edge-decoder.onnx"}, {"role": "encoder", "path": "encoder.onnx"},
            {"role": "frontend", "path": "frontend.onnx"}],
        "kv": $kv, "cross": $kv, "routers": "routers.npy",
        "groups": [{"name": "attention", "parameters": 1000, "bytes": 625, "bits": 4.0, "block_size": 32, "method": "rtn"}],
        "tokens": {"bos": 1, "eos": [2], "pad": null, "add_bos": true},
        "encoder": {"num_layers": 1, "hidden_size": 64, "num_heads": 4, "max_length": 1500, "input": "audio"},
        "speech": {"sample_rate": 16000, "window_samples": 480000, "start": 3, "no_timestamps": 4, "timestamp_begin": 50,
            "languages": {"en": 5}, "tasks": {"transcribe": 6}, "no_speech": 7, "previous": 8, "suppress": [9, 10],
            "begin_suppress": [11]},
        "generation": {"max_length": 60, "num_beams": 2, "length_penalty": 1.0, "early_stopping": "never",
            "forced_bos": 5, "forced_eos": 2, "suppress": [12], "bad_words": [[13, 14]], "repetition_penalty": 1.1},
        "segments": [{"part": "start", "layers": [0]}, {"part": "end", "layers": [1]}],
        "files": [${files.joinToString { (name, size) -> """{"path": "$name", "size": $size, "sha256": "$sha"}""" }}]
    }"""

    private fun parse(text: String) = Manifest.parse(text, "edge.json")

    private fun refused(words: String, action: () -> Unit) {
        val error = assertThrows(BundleException::class.java) { action() }
        assertTrue(words in error.message!!) { "'$words' is not in: ${error.message}" }
        assertTrue(error.message!!.length < 1000) { "a sentence, not ${error.message!!.length} letters" }
    }

    private fun with(path: List<Any>, value: JsonElement, within: JsonElement = Json.parseToJsonElement(whole)): JsonElement {
        val step = path.firstOrNull() ?: return value
        val rest = path.drop(1)
        return when (within) {
            is JsonObject -> JsonObject(within + (step as String to with(rest, value, within[step] ?: JsonNull)))
            is JsonArray -> JsonArray(within.mapIndexed { i, each -> if (i == step) with(rest, value, each) else each })
            else -> value
        }
    }

    /** The places of all values that are [kind]. */
    private fun places(within: JsonElement, at: List<Any> = emptyList(), kind: (JsonElement) -> Boolean): List<List<Any>> =
        when (within) {
            is JsonObject -> within.flatMap { (name, value) -> places(value, at + name, kind) }
            is JsonArray -> within.flatMapIndexed { i, value -> places(value, at + i, kind) }
            else -> emptyList()
        } + if (kind(within)) listOf(at) else emptyList()

    private fun isNumber(value: JsonElement) = value is JsonPrimitive && !value.isString && value.content.toDoubleOrNull() != null

    @Test
    fun `a manifest as exports write it is taken`() {
        assertEquals(100, parse(whole).dims.vocabSize)
    }

    @Test
    fun `each size, count and token of a manifest has limits`() {
        val free = setOf("pad", "format_version", "length_penalty", "bits", "window")
        for (place in places(Json.parseToJsonElement(whole), kind = ::isNumber)) {
            if (place.any { it in free }) continue
            for (value in listOf(-1L, Int.MIN_VALUE.toLong(), 1L shl 33, Long.MAX_VALUE)) {
                if (place.last() in setOf("bytes", "size", "parameters") && value == 1L shl 33) continue // as large as some are
                refused("edge.json") { parse(with(place, JsonPrimitive(value)).toString()) }
            }
        }
    }

    @Test
    fun `a model whose layers have states is refused`() {
        val states = Json.parseToJsonElement("""[{"layer": 0, "name": "scan", "shape": [4, 16], "dtype": "float32"}]""")
        refused("layers have states, which this app does not run") { parse(with(listOf("states"), states).toString()) }
        parse(with(listOf("states"), JsonArray(emptyList())).toString())
    }

    @Test
    fun `a model that makes vectors is refused`() {
        refused("makes vectors of texts, which this app does not do") {
            parse(with(listOf("kind"), JsonPrimitive("embedder")).toString())
        }
    }

    @Test
    fun `weights in the blocks of GGUF files are refused`() {
        refused("weights in the blocks of GGUF files, which this app does not run") {
            parse(with(listOf("weights"), JsonPrimitive("gguf")).toString())
        }
    }

    @Test
    fun `a value of any other kind is taken or refused in a sentence`() {
        val random = Random(1)
        val strange = listOf(
            JsonNull, JsonPrimitive(true), JsonPrimitive("\u0000"), JsonPrimitive("x".repeat(5000)), JsonPrimitive(1e300),
            JsonPrimitive(Int.MAX_VALUE), JsonPrimitive(0), JsonPrimitive(-0.5), JsonArray(emptyList()), JsonObject(emptyMap()),
            JsonArray(List(3000) { JsonPrimitive(it) }), Json.parseToJsonElement("[".repeat(50) + "]".repeat(50)),
        )
        for (place in places(Json.parseToJsonElement(whole)) { true }.drop(0)) {
            for (value in strange.shuffled(random).take(5)) {
                try {
                    parse(with(place, value).toString())
                } catch (e: BundleException) {
                    assertTrue(e.message!!.startsWith("edge.json"), e.message)
                }
            }
        }
    }

    @Test
    fun `weights too few for what a manifest states are refused before they are read`() {
        val root = bundle(with(listOf("dims", "vocab_size"), JsonPrimitive(200_000)))
        refused("too few for the weights and the vocabulary of 200000") { Bundle.open(root) }
        refused("too few for the weights") { Bundle.open(bundle(with(listOf("groups", 0, "bytes"), JsonPrimitive(1L shl 40)))) }
    }

    @Test
    fun `a manifest without end, of gigabytes, nested or no file is refused at once`() {
        assumeTrue(File("/dev/zero").exists())
        for (make in listOf<(Path) -> Unit>(
            { Files.createSymbolicLink(it, Paths.get("/dev/zero")) },
            { assumeTrue(ProcessBuilder("mkfifo", "$it").start().waitFor() == 0) },
            { Files.newByteChannel(it, setOf(java.nio.file.StandardOpenOption.CREATE_NEW, java.nio.file.StandardOpenOption.WRITE))
                .use { file -> file.position(3L shl 30).write(java.nio.ByteBuffer.wrap(byteArrayOf(0))) } },
            { it.toFile().writeText("[".repeat(1_000_000)) },
            { it.toFile().writeText("{\"a\":".repeat(500_000)) },
            { Files.write(it, byteArrayOf(0x7b, 0xff.toByte(), 0x7d)) },
            { Files.createDirectory(it) },
        )) {
            val root = Files.createTempDirectory(folder, "b")
            make(root.resolve(MANIFEST))
            assertTimeoutPreemptively(Duration.ofSeconds(20)) {
                refused(MANIFEST) { Bundle.open(root.toFile()) }
            }
        }
    }

    @Test
    fun `files outside the bundle, twice, unlisted or with odd names are refused`() {
        for ((name, words) in mapOf(
            "../weights.bin" to "leads out", "/etc/passwd" to "leads out", "a\\b" to "leads out", "C:x" to "leads out",
            "" to "edge.json", "a//b" to "plainer", "./a" to "plainer", "x".repeat(256) to "longer than 255", "EDGE.json" to "twice",
            "Weights.bin" to "twice", "a/".repeat(600) + "b" to "too long", "a/../b" to "leads out",
        )) {
            refused(words) { Bundle.open(bundle(with(listOf("files", 3, "path"), JsonPrimitive(name)), routers = name)) }
        }
        refused("does not list") { Bundle.open(bundle(with(listOf("routers"), JsonPrimitive("x".repeat(5000))))) }
        val root = bundle(Json.parseToJsonElement(whole))
        File(root, "targets").mkdir()
        File(root, "targets/target.json").writeText("{}")
        val opened = Bundle.open(root)
        refused("does not list 'targets/target.json'") { opened.file("targets/target.json") }
        Files.createSymbolicLink(root.toPath().resolve("out"), Paths.get("/etc/hostname"))
        refused("leads out") { Bundle.open(bundle(with(listOf("files", 3, "path"), JsonPrimitive("out")), root, "out")) }
        Files.createSymbolicLink(root.toPath().resolve("round"), Paths.get("round"))
        val round = bundle(with(listOf("files", 3, "path"), JsonPrimitive("round")), root, "round")
        refused(root.name) { Bundle.open(round).checkSizes() }
    }

    private fun bundle(manifest: JsonElement, at: File? = null, routers: String? = null): File {
        val root = at ?: Files.createTempDirectory(folder, "b").toFile()
        var written = manifest.jsonObject
        if (routers != null) written = JsonObject(written + ("routers" to JsonPrimitive(routers)))
        File(root, MANIFEST).writeText(written.toString())
        return root
    }
}
