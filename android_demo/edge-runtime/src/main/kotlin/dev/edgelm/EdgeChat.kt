package dev.edgelm

import dev.edgelm.decode.answer
import dev.edgelm.engine.KvCache
import dev.edgelm.text.Message
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.sync.Mutex

/**
 * A conversation that keeps its keys and values, so that a turn costs its own tokens only. [EdgeModel.chat] makes one.
 * It is used by one at a time: while an answer is under way, another turn is an InputException. Memory does not grow with turns: it is that of the context.
 */
class EdgeChat internal constructor(
    private val model: EdgeModel,
    opening: List<Message>,
    private val dispatcher: CoroutineDispatcher,
) : AutoCloseable {
    private val system = opening.takeWhile { it.role == "system" }
    private val turn = Mutex()
    private var cache: KvCache? = null
    private var cached = IntArray(0) // the tokens in the cache
    private var said = IntArray(0) // the tokens of the conversation, without the last answer's end token
    private var saidText = "" // their text

    init {
        if (!model.hasChatFormat) {
            throw InputException("${model.bundle.manifest.name} has no chat format, so it cannot hold a conversation.")
        }
    }

    /** The turns so far, the answers as they were shown. */
    @Volatile
    var messages: List<Message> = opening
        private set

    /**
     * Say something; the answer streams. What was said of it counts also when its collector is cancelled; a turn that
     * nothing was answered in is not kept, because models refuse an empty message.
     *
     * @throws InputException (in the flow) the message is empty, the conversation does not fit any more, or another answer
     *   of it is under way.
     */
    fun say(message: String, options: GenerateOptions = GenerateOptions()): Flow<Piece> =
        streaming(dispatcher, ahead = Channel.RENDEZVOUS) { goOn -> alone {
            val asked = messages + Message("user", message)
            val text = model.rendered(asked, raw = false)
            val prompt = tokens(text)
            model.checkRoom(prompt, "start the conversation over")
            val cache = cache ?: model.engine.newCache(model.context).also {
                cache = it
                cached = IntArray(0)
            }
            // The last token is run in any case: its logits are needed.
            cache.length = minOf(shared(cached, prompt), cache.reusable, prompt.size - 1)
            val shown = StringBuilder()
            val sampled = ArrayList<Int>()
            var ended = false
            try {
                answer(model.engine, model.tokenizer, cache, prompt, options, goOn, model.speculation).use {
                    for (piece in it) {
                        emit(piece) // what nobody received was not said
                        shown.append(piece.text)
                        sampled += piece.token
                        ended = piece.finish == FinishReason.STOP
                    }
                }
            } finally {
                val all = prompt + sampled.toIntArray()
                if (shown.isNotBlank()) messages = asked + Message("assistant", shown.toString())
                cached = all.copyOf(minOf(cache.length, all.size))
                if (ended && sampled.last() in model.bundle.manifest.tokens.eos) {
                    said = all.copyOf(all.size - 1)
                    saidText = text + model.controls.hide(shown.toString(), answer = true)
                } else {
                    // After a stop string the tokens say more than the text that was shown.
                    said = if (ended) IntArray(0) else all
                    saidText = text + model.controls.hide(shown.toString(), answer = true)
                }
            }
        } }

    /** Do it while nobody else uses the conversation. */
    private inline fun alone(action: () -> Unit) {
        if (!turn.tryLock()) {
            throw InputException("An answer of this conversation is under way; wait for its end, or cancel it and join it.")
        }
        try {
            action()
        } finally {
            turn.unlock()
        }
    }

    /** Start over: forget every turn but the system message. */
    fun reset() = alone {
        messages = system
        cached = IntArray(0)
        said = IntArray(0)
        saidText = ""
    }

    /**
     * The conversation's tokens. What was said keeps the tokens it was said with, because encoding an answer need not
     * give back those that the model chose; only what follows is encoded, where it begins with a special token, at which
     * every tokenizer splits.
     */
    private fun tokens(text: String): IntArray {
        if (said.isNotEmpty() && text.startsWith(saidText)) {
            val new = model.tokenizer.encode(text.substring(saidText.length))
            if (new.isNotEmpty() && new[0] in model.tokenizer.special) return said + new
        }
        return model.bundle.manifest.tokens.led(model.tokenizer.encode(text))
    }

    /** Release its keys and values; the conversation may go on, and is read anew then. */
    override fun close() {
        cache?.close()
        cache = null
    }

    private companion object {
        fun shared(a: IntArray, b: IntArray): Int {
            val most = minOf(a.size, b.size)
            for (i in 0 until most) if (a[i] != b[i]) return i
            return most
        }
    }
}
