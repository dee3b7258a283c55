package dev.edgelm.app

import dev.edgelm.FinishReason
import dev.edgelm.InputException
import dev.edgelm.Timings
import dev.edgelm.app.bundles.BundleSource
import dev.edgelm.app.dictate.Microphone
import dev.edgelm.app.model.ChatModel
import dev.edgelm.app.model.Conversation
import dev.edgelm.app.model.Line
import dev.edgelm.app.model.SpeechModel
import dev.edgelm.app.model.TextModel
import dev.edgelm.app.model.Words
import dev.edgelm.profile.BundleInfo
import dev.edgelm.profile.Decode
import dev.edgelm.profile.Device
import dev.edgelm.profile.FirstToken
import dev.edgelm.profile.MemoryUse
import dev.edgelm.profile.Profile
import dev.edgelm.profile.Stats
import dev.edgelm.profile.StepCost
import dev.edgelm.text.Message
import java.io.File
import java.io.InputStream
import java.nio.ShortBuffer
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow

/** A model that says [answer], piece by piece; after the first two pieces it waits for [gate]. */
class FakeModel(
    override val name: String = "smollm2-135m-instruct",
    private val answer: List<String> = listOf("The sky ", "is blue ", "because air ", "scatters blue light."),
    private val gate: CompletableDeferred<Unit>? = null,
    private val profiles: List<Profile> = listOf(profile(1), profile(3)),
    override val chats: Boolean = true,
) : ChatModel {
    override val context = 4096
    override val bytes = 214_000_000L
    var trimmed = 0
    var closed = 0

    override fun chat(messages: List<Message>): Conversation = Chat(messages)

    override fun profile(): Flow<Profile> = flow {
        for ((i, profile) in profiles.withIndex()) {
            if (i == 1) gate?.await()
            emit(profile)
        }
    }

    override fun trim() {
        trimmed++
    }

    override fun close() {
        closed++
    }

    private inner class Chat(override val messages: List<Message>) : Conversation {
        override fun say(message: String): Flow<Words> = flow {
            for ((i, piece) in answer.withIndex()) {
                if (i == 2) gate?.await()
                val last = i == answer.size - 1
                emit(Words(piece, FinishReason.STOP.takeIf { last }, Timings(20, 0, 24, 180.4, 1.0).takeIf { last }))
            }
        }

        override fun close() = Unit
    }
}

/** A model that makes a German sentence of any text, piece by piece; after the first two pieces it waits for [gate]. */
class FakeTranslator(
    private val gate: CompletableDeferred<Unit>? = null,
    override val sources: List<String> = listOf("eng_Latn", "deu_Latn", "fra_Latn"),
) : TextModel {
    override val name = "nllb-200-distilled-600m"
    override val bytes = 412_000_000L
    override val targets = sources
    override val source: String? = null
    override val target: String? = null
    val asked = ArrayList<List<String?>>()

    override fun generate(text: String, from: String?, to: String?): Flow<Words> = flow {
        if (text.isBlank()) throw InputException("The text is empty; give the model something to work on.")
        asked += listOf(text, from, to)
        for ((i, piece) in listOf("Ein Mann ", "fährt ", "auf einem ", "Fahrrad.").withIndex()) {
            if (i == 2) gate?.await()
            emit(Words(piece, FinishReason.STOP.takeIf { i == 3 }, Timings(9, 0, 11, 95.2, 0.5).takeIf { i == 3 }))
        }
    }

    override fun trim() = Unit

    override fun close() = Unit
}

/** A model that hears three lines in whatever it is given; after the first it waits for [gate]. */
class FakeHearer(private val gate: CompletableDeferred<Unit>? = null) : SpeechModel {
    override val name = "whisper-base"
    override val bytes = 180_000_000L
    override val sampleRate = 16_000
    override val languages = listOf("en", "de", "fr")
    val heard = ArrayList<List<Short>>()
    val asked = ArrayList<String?>()

    override fun transcribe(pcm: ShortBuffer, language: String?): Flow<Line> = flow {
        heard += List(pcm.limit()) { pcm[it] }
        asked += language
        for ((i, line) in LINES.withIndex()) {
            if (i == 1) gate?.await()
            emit(line)
        }
    }

    override fun trim() = Unit

    override fun close() = Unit

    companion object {
        val LINES = listOf(
            Line(0.0, 3.4, " The lighthouse keeper wrote down the weather every evening,"),
            Line(3.4, 5.0, " and the ships that passed."),
            Line(65.2, 67.0, " Nobody ever read it."),
        )
    }
}

/** A microphone that gives [chunks], and then nothing until it is left. */
class FakeMicrophone(private val chunks: List<ShortArray> = List(12) { ShortArray(1600) { i -> (i % 100 * 60).toShort() } }) : Microphone {
    var problem: String? = null
    var rate = 0

    override fun record(rate: Int): Flow<ShortArray> = flow {
        this@FakeMicrophone.rate = rate
        for (chunk in chunks) emit(chunk)
        problem?.let { throw InputException(it) }
        awaitCancellation()
    }
}

/** A profile at the first [contexts] of three contexts. */
fun profile(contexts: Int): Profile {
    fun stats(ms: Double) = Stats(50, ms, 1.1 * ms, 1.3 * ms, 0.95 * ms, 0.02 * ms, 0.98 * ms, 1.02 * ms)
    val at = listOf(16, 128, 512).take(contexts)
    return Profile(
        producer = "edge-android 0.1.0", created = "2026-01-02T03:04:05+01:00", seconds = 41.0,
        device = Device("Test phone", "a processor", 8, 8_000_000_000, "Android 14", "onnxruntime 1.29.0", "CPUExecutionProvider", 8),
        bundle = BundleInfo("smollm2-135m-instruct", "ab".repeat(32), "llama", "decoder", "prompt", "int4", 8192, 134_515_008, 81_272_832),
        context = 544,
        ttft = at.map { FirstToken(it, stats(12.0 + 0.9 * it)) },
        decode = at.map { Decode(it, stats(14 + 0.006 * it), 1000 / (14.2 + 0.006 * it)) },
        curve = at.flatMap { context ->
            listOf(1, 2, 4, 8).map { StepCost(it, context, 13 + 1.7 * it + 0.006 * context, 12.0, 18.0 + 2 * it, 50) }
        },
        memory = MemoryUse(310_000_000, 300_000_000, null, 214_000_000, 544),
    )
}

/** A bundle on the disk, right in all but what is in its files. */
object FakeBundle {
    private val FILES = listOf("weights.bin" to 2_000, "tokenizer.json" to 100, "golden.json" to 50, "graphs/decoder.onnx" to 700)

    fun write(root: File, name: String = "smollm2-135m-instruct", family: String = "llama") {
        for ((path, size) in FILES) File(root, path).apply { parentFile!!.mkdirs() }.writeBytes(ByteArray(size))
        File(root, "edge.json").writeText(manifest(name, family))
    }

    private fun manifest(name: String, family: String): String {
        val files = FILES.joinToString { (path, size) -> """{"path": "$path", "size": $size, "sha256": ""}""" }
        val slot = """{"before": "<user>"}"""
        val hears = family == "whisper"
        val speech = """{"sample_rate": 16000, "window_samples": 480000, "start": 0, "no_timestamps": 1, "timestamp_begin": 2}"""
        val encoder = """
            "encoder": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "max_length": 9, "input": "${if (hears) "audio" else "text"}"},
            "cross": {"dtype": "float32", "layers": [{"heads": 1, "head_dim": 8}]}, ${if (hears) "\"speech\": $speech" else "\"text\": {}"},
        """
        val kind = if (family == "llama") "decoder" else "encoder-decoder"
        val graphs = listOf("decoder", "encoder", "frontend").joinToString { """{"role": "$it", "path": "graphs/decoder.onnx"}""" }
        return """{
            "format_version": 2, "producer": "edge 0.1.0", "name": "$name", "family": "$family", "kind": "$kind", "weights": "int4",
            "dims": {"num_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8,
                     "vocab_size": 10},
            "context": 8192, "graphs": [$graphs],
            "kv": {"dtype": "float32", "layers": [{"heads": 1, "head_dim": 8}]}, "groups": [],
            "tokens": {"bos": null, "eos": [1], "pad": null, "add_bos": false}, "chat_template": null,
            "chat_format": {"first_user": $slot, "assistant": $slot, "user": $slot, "generation": "<assistant>"},
            ${if (kind == "decoder") "" else encoder}
            "source": {"name": "x", "kind": "test"}, "files": [$files]}"""
    }
}

/** A folder as a source, as the system's picker gives one. */
class FolderSource(private val folder: File, override val name: String = folder.name) : BundleSource {
    override fun open(path: String): InputStream? = File(folder, path).takeIf { it.isFile }?.inputStream()
}
