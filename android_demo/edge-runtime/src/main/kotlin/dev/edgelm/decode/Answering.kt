package dev.edgelm.decode

import dev.edgelm.FinishReason
import dev.edgelm.GenerateOptions
import dev.edgelm.Piece
import dev.edgelm.Timings
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.speculate.AnswerDrafts
import dev.edgelm.speculate.Speculation
import dev.edgelm.text.Detokenizer
import dev.edgelm.text.StopStrings
import dev.edgelm.text.Tokenizer

/** What ends an answer: [room] is how many tokens the context has room for. */
internal class Ends(val stop: List<String>, val eos: Set<Int>, val maxTokens: Int, val room: Int) {
    /** What ends an answer whose [count]th token is [token]; null: it may go on. */
    fun reached(token: Int, count: Int): FinishReason? = when {
        token in eos -> FinishReason.STOP
        count == maxTokens -> FinishReason.LENGTH
        count == room -> FinishReason.CONTEXT
        else -> null
    }
}

/**
 * One answer as it streams: [tokens], as they come, become pieces of text until something ends it. Where they run out
 * before, which a search does that may say nothing more, a last piece has no token.
 *
 * [asked]: the time when the answer was asked for.
 */
internal class Answering(
    private val tokens: Iterator<Int>,
    tokenizer: Tokenizer,
    private val ends: Ends,
    private val promptTokens: Int,
    private val cachedTokens: Int = 0,
    private val asked: Long = System.nanoTime(),
    private val drafts: AnswerDrafts? = null,
) : Iterator<Piece>, AutoCloseable {
    private val detokenizer = Detokenizer(tokenizer::decode) { it >= tokenizer.size || it in tokenizer.special }
    private val stops = StopStrings(ends.stop)
    private var generated = 0
    private var done = false
    private var firstMs = 0.0
    private var decodeNs = 0L

    override fun hasNext() = !done

    override fun next(): Piece {
        if (done) throw NoSuchElementException()
        val begun = System.nanoTime()
        if (!tokens.hasNext()) return last(rest(), Piece.NONE, FinishReason.LENGTH)
        val token = tokens.next()
        val now = System.nanoTime()
        if (generated == 0) firstMs = (now - asked) / 1e6 else decodeNs += now - begun
        generated++
        val (text, stopped) = stops.push(detokenizer.push(token))
        if (stopped) return last(text, token, FinishReason.STOP)
        val finish = ends.reached(token, generated) ?: return Piece(text, token, null, null)
        return last(text + rest(), token, finish)
    }

    private fun last(text: String, token: Int, finish: FinishReason): Piece {
        done = true
        val timings = Timings(promptTokens, cachedTokens, generated, firstMs, decodeNs / 1e9, drafts?.figures)
        return Piece(text, token, finish, timings)
    }

    /** The answer ended, or nobody wants the rest of it. */
    override fun close() {
        drafts?.close()
    }

    /** What was held back, now that nothing follows. */
    private fun rest(): String {
        val (shown, found) = stops.push(detokenizer.flush())
        return if (found) shown else shown + stops.flush()
    }
}

/**
 * A decoder's answer to [prompt], token ids of which the first `cache.length` are in the cache. [goOn] is called before
 * every step, and throws where the answer is to end. [speculation]: what drafts, where anything does.
 */
internal fun answer(
    engine: Engine,
    tokenizer: Tokenizer,
    cache: KvCache,
    prompt: IntArray,
    options: GenerateOptions,
    goOn: () -> Unit,
    speculation: Speculation? = null,
): Answering {
    val manifest = engine.bundle.manifest
    val ends = Ends(
        options.stop, manifest.tokens.eos.toSet(), options.maxTokens,
        room = cache.capacity - prompt.size + 1, // the last token is never run
    )
    val sampler = Sampler(options.sampling, prompt, manifest.dims.vocabSize)
    val most = minOf(ends.maxTokens, ends.room)
    val drawn = options.sampling.temperature > 0
    val drafts = speculation?.let { AnswerDrafts(it, prompt, most, manifest.tokens.eos.toIntArray(), drawn) }
    val tokens = DecodeLoop(engine, cache, prompt, sampler, goOn, drafts)
    return Answering(tokens, tokenizer, ends, prompt.size, cache.length, drafts = drafts)
}
