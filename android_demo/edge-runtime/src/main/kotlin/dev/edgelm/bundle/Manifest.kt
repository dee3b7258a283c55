package dev.edgelm.bundle

import dev.edgelm.BundleException
import dev.edgelm.text.ChatFormat
import java.util.zip.CRC32
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNamingStrategy
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.intOrNull
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive

/** The version of the bundle format that this library reads. */
const val FORMAT_VERSION = 2

private const val GGUF = "gguf" // weights in the blocks of a GGUF file, which edge's own kernels alone compute
private const val EMBEDDER = "embedder" // the kind of a model that makes vectors of texts

/** Sizes of the decoder. */
@Serializable
data class Dims(
    val numLayers: Int,
    val hiddenSize: Int,
    val intermediateSize: Int,
    val numHeads: Int,
    val numKvHeads: Int,
    val headDim: Int,
    val vocabSize: Int,
)

/** One ONNX file. */
@Serializable
data class Graph(
    val role: String,
    val path: String,
    val trees: Boolean = false,
    val tokens: Boolean = false,
    val scores: Boolean = true,
    val parts: Int = 1,
    val preciseLayers: Int = 1,
)

/** KV buffers of one layer, each [1, heads, capacity, headDim]. */
@Serializable
data class KvLayer(val heads: Int, val headDim: Int, val window: Int? = null)

@Serializable
data class KvLayout(val dtype: String, val layers: List<KvLayer>) {
    /** Bytes of keys and values that one token takes in every layer's buffers, where a value takes [valueBytes]. */
    fun bytesPerToken(valueBytes: Int): Long = layers.sumOf { 2L * it.heads * it.headDim * valueBytes }
}

/** How one group of weights is stored. */
@Serializable
data class TensorGroup(
    val name: String,
    val parameters: Long,
    val bytes: Long,
    val bits: Double,
    val blockSize: Int,
    val method: String,
)

/** The int8 prefill graph: the decoder's layers for steps of many tokens, over the same buffers. */
@Serializable
data class PrefillGraph(val weights: String, val version: Int, val groups: List<TensorGroup>) {
    /** Whether this library can run it. */
    val known: Boolean get() = version == 1 && weights == "int8"
}

/**
 * A unit of the graph that skips, in the order they run: [part] is `start` (embedding and first layer), `layers`, or
 * `attention` and `feed_forward` in turns, `end`. Those in between can be left out.
 */
@Serializable
data class Segment(val part: String, val layers: List<Int>)

/** Special token ids. */
@Serializable
data class Tokens(val bos: Int?, val eos: List<Int>, val pad: Int?, val addBos: Boolean) {
    /** The ids of a whole text, with `bos` in front where the model wants it and they lack it. */
    fun led(ids: IntArray): IntArray =
        if (!addBos || bos == null || ids.firstOrNull() == bos) ids else intArrayOf(bos) + ids
}

/** Sizes of an encoder, and what it reads: `text` or `audio`. */
@Serializable
data class EncoderDims(
    val numLayers: Int,
    val hiddenSize: Int,
    val numHeads: Int,
    val maxLength: Int,
    val input: String,
    val valuesTransposed: Boolean = false,
    val anyLength: Boolean = false,
)

/** How text is framed in an encoder's input, and what a text decoder begins with. */
@Serializable
data class TextFormat(
    val prefix: List<Int> = emptyList(),
    val suffix: List<Int> = emptyList(),
    val decoderStart: List<Int> = emptyList(),
    val languages: Map<String, Int> = emptyMap(),
    val sourceAt: String = "",
    val targetAtStart: Boolean = false,
    val targetInSource: Boolean = false,
    val source: String? = null,
    val target: String? = null,
)

/** The audio's format and the ids of Whisper's special tokens. */
@Serializable
data class Speech(
    val sampleRate: Int,
    val windowSamples: Int,
    val start: Int,
    val noTimestamps: Int,
    val timestampBegin: Int,
    val languages: Map<String, Int> = emptyMap(),
    val tasks: Map<String, Int> = emptyMap(),
    val noSpeech: Int? = null,
    val previous: Int? = null,
    val suppress: List<Int> = emptyList(),
    val beginSuppress: List<Int> = emptyList(),
    val framesPerSecond: Int = 50,
    val maxInitialTimestampIndex: Int? = 50,
)

/** The checkpoint's own defaults for an encoder-decoder's outputs. */
@Serializable
data class Generation(
    val maxLength: Int? = null,
    val numBeams: Int = 1,
    val lengthPenalty: Double = 1.0,
    /** true, false or "never". */
    val earlyStopping: JsonPrimitive = JsonPrimitive(false),
    val noRepeatNgramSize: Int = 0,
    val forcedBos: Int? = null,
    val forcedEos: Int? = null,
    val suppress: List<Int> = emptyList(),
    val beginSuppress: List<Int> = emptyList(),
    val badWords: List<List<Int>> = emptyList(),
    val repetitionPenalty: Double = 1.0,
    val minLength: Int = 0,
)

/** What is read of a model's thoughts: the mark of an answer that is a message of a channel, else empty. */
@Serializable
data class Thinking(val answer: String = "")

@Serializable
data class Source(val name: String, val kind: String, val licence: String? = null)

@Serializable
data class BundleFile(val path: String, val size: Long, val sha256: String)

/** The content of `edge.json`, as far as this library needs it: docs/reference/bundle-format.md says what it means. */
@Serializable
data class Manifest(
    val formatVersion: Int,
    val producer: String,
    val name: String,
    val family: String,
    val kind: String,
    val weights: String,
    val dims: Dims,
    val context: Int,
    val graphs: List<Graph>,
    val kv: KvLayout,
    val groups: List<TensorGroup>,
    val tokens: Tokens,
    val chatTemplate: String?,
    val chatFormat: ChatFormat? = null,
    val source: Source,
    val encoder: EncoderDims? = null,
    val cross: KvLayout? = null,
    val text: TextFormat? = null,
    val speech: Speech? = null,
    val generation: Generation? = null,
    val thinking: Thinking? = null,
    val prefill: PrefillGraph? = null,
    val shortRope: Int? = null,
    val segments: List<Segment> = emptyList(),
    val routers: String? = null,
    val states: List<JsonElement> = emptyList(), // of recurrent and convolutional layers, which this library does not run
    val files: List<BundleFile> = emptyList(),
) {
    /** The graph with this role; null where there is none. */
    fun graph(role: String): Graph? = graphs.firstOrNull { it.role == role }

    /** Bytes of a file that the manifest lists. */
    fun size(path: String): Long = files.firstOrNull { it.path == path }?.size ?: 0

    companion object {
        @OptIn(ExperimentalSerializationApi::class)
        internal val json = Json {
            ignoreUnknownKeys = true
            namingStrategy = JsonNamingStrategy.SnakeCase
        }

        /** A manifest from its JSON text; BundleException, in which [where] names the file, where it cannot be used. */
        fun parse(text: String, where: String): Manifest {
            try {
                val raw = json.parseToJsonElement(text).jsonObject
                val version = raw["format_version"]?.jsonPrimitive?.intOrNull
                if (version != FORMAT_VERSION) {
                    val what = if (version == null) "has no format_version" else "has format version $version"
                    val advice = if (version != null && version > FORMAT_VERSION) "update the app" else "export the model again"
                    throw BundleException("$where $what, and this app reads $FORMAT_VERSION; $advice.")
                }
                raw["crc32"]?.jsonPrimitive?.let { checkSum(text, it, where) }
                return json.decodeFromJsonElement(serializer(), raw).also { it.check(where) }
            } catch (e: SerializationException) {
                throw damaged(where, e)
            } catch (e: IllegalArgumentException) { // an element of another kind
                throw damaged(where, e)
            }
        }

        private fun damaged(where: String, e: Exception) =
            BundleException("$where is damaged: ${e.message.orEmpty().lineSequence().first()} Copy the bundle again.", e)

        private fun checkSum(text: String, wanted: JsonPrimitive, where: String) {
            val end = maxOf(text.lastIndexOf("\"crc32\""), 0)
            val sum = CRC32().apply { update(text.substring(0, end).replace("\r\n", "\n").toByteArray()) }
            if ("%08x".format(sum.value) != wanted.content) {
                throw BundleException("$where was changed: its checksum differs; copy the bundle again.")
            }
        }
    }

    private fun check(where: String) {
        if (states.isNotEmpty()) {
            throw BundleException("$where is of a model whose layers have states, which this app does not run; choose another model.")
        }
        if (kind == EMBEDDER) {
            throw BundleException("$where is of a model that makes vectors of texts, which this app does not do; choose another model.")
        }
        if (weights == GGUF) {
            throw BundleException(
                "$where has weights in the blocks of GGUF files, which this app does not run; export the model with --weights keep.",
            )
        }
        val fault = ManifestChecks(this).fault() ?: return
        throw BundleException("$where cannot be used: $fault; export the model again.")
    }
}
