package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.decode.answer
import dev.edgelm.engine.Engine
import dev.edgelm.memory.Plan
import dev.edgelm.profile.CostCurve
import dev.edgelm.profile.DeviceName
import dev.edgelm.profile.Profile
import dev.edgelm.profile.ProfileOptions
import dev.edgelm.profile.Profiling
import dev.edgelm.skip.SkipPolicy
import dev.edgelm.speculate.Speculation
import dev.edgelm.text.Controls
import dev.edgelm.text.Message
import dev.edgelm.text.Tokenizer
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow

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
 * @property beams of an encoder-decoder: texts searched side by side that [memory] has room for; null: as many as the
 *   bundle sets, and one of a speech model.
 * @property speculate what drafts tokens, of which the model verifies several in a step. The text is the same.
 * @property profile a profile of this bundle on this device ([EdgeModel.profile], [Profile.toJson]), which says what steps
 *   of several tokens cost; null, or one of another bundle or device: that is guessed, and learnt as answers go on.
 * @property skip which layers of a decoder with segments are left out: `off`, or a policy with its setting, such as
 *   `unified:0.2`, `skipdecode:20-30`, `first:threshold=0.5` or `ffn:0.25`; answers are others then.
 */
data class EdgeOptions(
    val context: Int? = null,
    val memory: Long? = null,
    val threads: Int? = null,
    val kv: Kv = Kv.AUTO,
    val cacheDir: File? = null,
    val beams: Int? = null,
    val speculate: Speculate = Speculate.AUTO,
    val profile: File? = null,
    val skip: String = SkipPolicy.OFF,
)

/** What keys and values are kept in. int8 takes a quarter of the memory. */
enum class Kv { AUTO, FLOAT32, INT8 }

/** What drafts: nothing, words that came before, or those and the bundle's table of what the model often says. */
enum class Speculate {
    /** [BLEND] for a model without an encoder, [OFF] for others. */
    AUTO,
    OFF,
    LOOKUP,
    BLEND,
}

/**
 * A decoder's bundle in memory: text in, text out. Several threads may use it; [close] it when no more answers are
 * wanted.
 */
class EdgeModel internal constructor(
    private val loaded: Loaded,
    internal val speculation: Speculation?,
    private val dispatcher: CoroutineDispatcher,
) : AutoCloseable {
    internal val engine: Engine get() = loaded.engine
    internal val tokenizer: Tokenizer get() = loaded.tokenizer

    /** What is text where people typed it. */
    internal val controls by lazy { Controls.of(tokenizer, bundle.manifest.chatTemplate.orEmpty()) }

    val bundle: Bundle get() = loaded.bundle

    /** What it takes, as it was planned before it was loaded. */
    val plan: Plan get() = loaded.plan

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
    ): Flow<Piece> = streaming(dispatcher) { goOn ->
        val ids = promptIds(messages, raw)
        engine.newCache(minOf(engine.context, ids.size + options.maxTokens)).use { cache ->
            answer(engine, tokenizer, cache, ids, options, goOn, speculation).use { for (piece in it) emit(piece) }
        }
    }

    /** A conversation that keeps its keys and values from turn to turn. */
    fun chat(system: String? = null): EdgeChat =
        EdgeChat(this, if (system == null) emptyList() else listOf(Message("system", system)), dispatcher)

    /** A conversation that goes on from [messages], which an app kept over the death of its process. */
    fun chat(messages: List<Message>): EdgeChat = EdgeChat(this, messages, dispatcher)

    /**
     * Measure this model on this device: time to first token, time per token and per step, memory. The profile grows:
     * each one that comes has another figure. Nothing else should run meanwhile.
     */
    fun profile(device: DeviceName, options: ProfileOptions = ProfileOptions()): Flow<Profile> =
        streaming(dispatcher, ahead = Channel.BUFFERED) { goOn ->
            if (engine.role == Engine.SKIP) throw InputException("A profile is one of all layers; open the model without skip.")
            for (profile in Profiling(engine, tokenizer, device, options, goOn).profiles()) emit(profile)
        }

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
        if (!raw && format != null) return format.render(messages, controls::hide)
        if (!raw && !bundle.manifest.thinking?.answer.isNullOrEmpty()) { // thoughts would be shown as its answer
            throw InputException(
                "${bundle.manifest.name} answers in channels and has no chat format that opens one; give a raw prompt.",
            )
        }
        if (messages.size == 1 && messages[0].role == "user") return messages[0].content
        throw InputException("${bundle.manifest.name} has no chat format: it takes one text at a time.")
    }

    internal fun checkRoom(ids: IntArray, advice: String) {
        if (ids.isEmpty()) throw InputException("The prompt has no tokens; give the model something to answer.")
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
        /**
         * Open a bundle: check its files, plan its memory, load it.
         *
         * @throws BundleException it is damaged, too new, or no decoder.
         * @throws InputException an option is out of its range, or it does not fit into the memory.
         */
        fun open(
            path: File, options: EdgeOptions = EdgeOptions(), dispatcher: CoroutineDispatcher = Dispatchers.Default,
        ): EdgeModel {
            val profile = options.profile?.let(CostCurve::read)
            val loaded = Loaded.open(path, options) {
                if (it.kind == "decoder") null else "is an ${it.kind}, not a decoder; EdgeText2Text opens those of text."
            }
            try {
                val curve = profile?.let { CostCurve.of(it, loaded.bundle, loaded.plan.int8) }
                return EdgeModel(loaded, Speculation.make(options.speculate, loaded.bundle, loaded.plan, curve), dispatcher)
            } catch (e: EdgeException) {
                loaded.engine.close()
                throw e
            }
        }
    }
}
