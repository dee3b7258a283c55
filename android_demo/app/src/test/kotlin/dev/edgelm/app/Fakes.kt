package dev.edgelm.app

import dev.edgelm.FinishReason
import dev.edgelm.Timings
import dev.edgelm.app.bundles.BundleSource
import dev.edgelm.app.model.Conversation
import dev.edgelm.app.model.LoadedModel
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
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow

/** A model that says [answer], piece by piece; after the first two pieces it waits for [gate]. */
class FakeModel(
    override val name: String = "smollm2-135m-instruct",
    private val answer: List<String> = listOf("The sky ", "is blue ", "because air ", "scatters blue light."),
    private val gate: CompletableDeferred<Unit>? = null,
    private val profiles: List<Profile> = listOf(profile(1), profile(3)),
    override val chats: Boolean = true,
) : LoadedModel {
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

    fun write(root: File, name: String = "smollm2-135m-instruct", kind: String = "decoder") {
        for ((path, size) in FILES) File(root, path).apply { parentFile!!.mkdirs() }.writeBytes(ByteArray(size))
        File(root, "edge.json").writeText(manifest(name, kind))
    }

    private fun manifest(name: String, kind: String): String {
        val files = FILES.joinToString { (path, size) -> """{"path": "$path", "size": $size, "sha256": ""}""" }
        val slot = """{"before": "<user>"}"""
        val encoder = """
            "encoder": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "max_length": 9, "input": "text"}, "text": {},
            "cross": {"dtype": "float32", "layers": [{"heads": 1, "head_dim": 8}]},
        """
        return """{
            "format_version": 2, "producer": "edge 0.1.0", "name": "$name", "family": "llama", "kind": "$kind", "weights": "int4",
            "dims": {"num_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8,
                     "vocab_size": 10},
            "context": 8192,
            "graphs": [{"role": "decoder", "path": "graphs/decoder.onnx"}, {"role": "encoder", "path": "graphs/decoder.onnx"}],
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
