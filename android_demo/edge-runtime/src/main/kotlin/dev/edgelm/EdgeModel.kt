package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.TOKENIZER
import dev.edgelm.decode.Answering
import dev.edgelm.engine.Engine
import dev.edgelm.memory.Plan
import dev.edgelm.profile.DeviceName
import dev.edgelm.profile.Profile
import dev.edgelm.profile.ProfileOptions
import dev.edgelm.profile.Profiling
import dev.edgelm.text.Message
import dev.edgelm.text.Tokenizer
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn

/**
 * How a bundle is opened.
 *
 * @property context maximum tokens of prompt and answer together; null: the bundle's, up to 4,096, or what [memory] has
 *   room for.
 * @property memory maximum bytes that the model may take outside the Java heap. What does not fit is refused before
 *   anything is loaded. Null: no limit.
 * @property threads threads to compute with, shared by all models of the process: the first one decides. Null: one per
 *   core, up to 8.
 * @property kv what keys and values are kept in; [Kv.AUTO]: float32, or int8 where [memory] has room for no other.
 * @property cacheDir a folder of the app's in which it is remembered that the bundle's files were checked; null: all
 *   files are read every time.
 */
data class EdgeOptions(
    val context: Int? = null,
    val memory: Long? = null,
    val threads: Int? = null,
    val kv: Kv = Kv.AUTO,
    val cacheDir: File? = null,
)

/** What keys and values are kept in. int8 takes a quarter of the memory. */
enum class Kv { AUTO, FLOAT32, INT8 }

/**
 * A decoder's bundle in memory: text in, text out. Several threads may use it; [close] it when no more answers are
 * wanted.
 */
class EdgeModel private constructor(
    val bundle: Bundle,
    /** What it takes, as it was planned before it was loaded. */
    val plan: Plan,
    internal val engine: Engine,
    internal val tokenizer: Tokenizer,
    private val dispatcher: CoroutineDispatcher,
) : AutoCloseable {
    /** Maximum tokens of prompt and answer together. */
    val context: Int get() = engine.context

    /** Whether prompts and chats can be written as the model was trained on them. */
    val hasChatFormat: Boolean get() = bundle.manifest.chatFormat != null

    /**
     * Answer the user's words, piece by piece as tokens come. Cancelling the flow's collector ends the answer before the
     * next step.
     *
     * [raw]: give the words to the model as they are, without the chat format.
     */
    fun generate(prompt: String, options: GenerateOptions = GenerateOptions(), raw: Boolean = false): Flow<Piece> =
        generate(listOf(Message("user", prompt)), options, raw)

    /** Answer a conversation, whose last message is the user's. */
    fun generate(
        messages: List<Message>, options: GenerateOptions = GenerateOptions(), raw: Boolean = false,
    ): Flow<Piece> = flow {
        val job = currentCoroutineContext()
        val ids = promptIds(messages, raw)
        engine.newCache(minOf(engine.context, ids.size + options.maxTokens)).use { cache ->
            for (piece in Answering(engine, tokenizer, cache, ids, options) { job.ensureActive() }) emit(piece)
        }
    }.buffer(BUFFERED).flowOn(dispatcher)

    /** A conversation that keeps its keys and values from turn to turn. */
    fun chat(system: String? = null): EdgeChat =
        EdgeChat(this, if (system == null) emptyList() else listOf(Message("system", system)), dispatcher)

    /** A conversation that was kept elsewhere, for example over the death of the app's process, and goes on. */
    fun chat(messages: List<Message>): EdgeChat = EdgeChat(this, messages, dispatcher)

    /**
     * Measure this model on this device: time to first token, time per token and per step, memory. The profile grows:
     * each one that comes has another figure. Nothing else should run meanwhile.
     */
    fun profile(device: DeviceName, options: ProfileOptions = ProfileOptions()): Flow<Profile> = flow {
        val job = currentCoroutineContext()
        for (profile in Profiling(engine, tokenizer, device, options) { job.ensureActive() }.profiles()) emit(profile)
    }.flowOn(dispatcher)

    /** The token ids that [generate] runs for this conversation; InputException where it is empty or too long. */
    fun promptIds(messages: List<Message>, raw: Boolean = false): IntArray {
        val ids = bundle.manifest.tokens.led(tokenizer.encode(rendered(messages, raw)))
        checkRoom(ids, "shorten it")
        return ids
    }

    internal fun rendered(messages: List<Message>, raw: Boolean): String {
        if (messages.lastOrNull()?.content.isNullOrBlank()) {
            throw InputException("The prompt is empty; give the model something to answer.")
        }
        val format = bundle.manifest.chatFormat
        if (!raw && format != null) return format.render(messages)
        if (messages.size == 1 && messages[0].role == "user") return messages[0].content
        throw InputException("${bundle.manifest.name} has no chat format: it takes one text at a time.")
    }

    internal fun checkRoom(ids: IntArray, advice: String) {
        if (ids.size > engine.context) {
            throw InputException(
                "The prompt has ${ids.size} tokens and the context holds ${engine.context} (the bundle allows up to " +
                    "${bundle.manifest.context}); $advice or raise the context.",
            )
        }
    }

    /** Give memory back that is kept for speed; for an app's `onTrimMemory`. Answers that run go on. */
    fun trim() = engine.trim()

    /** Wait for the step that runs, if any, then release everything. Answers that go on end with an EdgeException. */
    override fun close() = engine.close()

    companion object {
        private const val DEFAULT_CONTEXT = 4096
        private const val BUFFERED = 4 // pieces that may wait for a slow collector, which then slows the answer down

        /**
         * Open a bundle: check its files, plan its memory, load it.
         *
         * @throws BundleException it is damaged, too new, or no decoder.
         * @throws InputException an option is out of its range, or it does not fit into the memory.
         */
        fun open(
            path: File, options: EdgeOptions = EdgeOptions(), dispatcher: CoroutineDispatcher = Dispatchers.Default,
        ): EdgeModel {
            val bundle = Bundle.open(path)
            val manifest = bundle.manifest
            if (manifest.kind != "decoder") {
                throw BundleException("${manifest.name} is an ${manifest.kind}; this library runs decoders.")
            }
            options.context?.let {
                if (it !in 1..manifest.context) {
                    throw InputException("The context must be between 1 and ${manifest.context} tokens, not $it.")
                }
            }
            bundle.checkSizes()
            val plan = Plan.make(manifest, options, minOf(DEFAULT_CONTEXT, manifest.context))
            bundle.checkFiles(options.cacheDir)
            val tokenizer = Tokenizer.read(bundle.file(TOKENIZER))
            val role = if (plan.int8) Engine.KV8 else Engine.DECODER
            val engine = Engine(bundle, role, plan.context, options.threads, plan.prefill)
            return EdgeModel(bundle, plan, engine, tokenizer, dispatcher)
        }
    }
}
