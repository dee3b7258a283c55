package dev.edgelm.decode

import dev.edgelm.FinishReason
import dev.edgelm.GenerateOptions
import dev.edgelm.Piece
import dev.edgelm.Timings
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.text.Detokenizer
import dev.edgelm.text.StopStrings
import dev.edgelm.text.Tokenizer

/**
 * One answer as it streams: tokens become pieces of text until something ends it. The last token is never in the cache,
 * whenever this is left.
 *
 * [prompt]: token ids, of which the first `cache.length` are in the cache. [goOn] is called before every step, and
 * throws where the answer is to end.
 */
internal class Answering(
    private val engine: Engine,
    private val tokenizer: Tokenizer,
    private val cache: KvCache,
    private val prompt: IntArray,
    private val options: GenerateOptions,
    private val goOn: () -> Unit,
) : Iterator<Piece> {
    private val vocab = engine.bundle.manifest.dims.vocabSize
    private val ends = engine.bundle.manifest.tokens.eos.toSet()
    private val sampler = Sampler(options.sampling, prompt, vocab)
    private val chooses = engine.chooses && !sampler.needsLogits
    private val detokenizer = Detokenizer(tokenizer::decode) { it >= tokenizer.size || it in tokenizer.special }
    private val stops = StopStrings(options.stop)
    private val cached = cache.length
    private val room = cache.capacity - prompt.size + 1 // the last token is never run
    private val last = IntArray(1)
    private var generated = 0
    private var done = false
    private val asked = System.nanoTime()
    private var firstMs = 0.0
    private var decodeNs = 0L

    override fun hasNext() = !done

    override fun next(): Piece {
        if (done) throw NoSuchElementException()
        val begun = System.nanoTime()
        last[0] = if (generated == 0) first() else following()
        val now = System.nanoTime()
        if (generated == 0) firstMs = (now - asked) / 1e6 else decodeNs += now - begun
        generated++
        val token = last[0]
        val (text, stopped) = stops.push(detokenizer.push(token))
        val finish = when {
            stopped || token in ends -> FinishReason.STOP
            generated == options.maxTokens -> FinishReason.LENGTH
            generated == room -> FinishReason.CONTEXT
            else -> return Piece(text, token, null, null)
        }
        done = true
        val timings = Timings(prompt.size, cached, generated, firstMs, decodeNs / 1e9)
        return Piece(if (stopped) text else text + rest(), token, finish, timings)
    }

    private fun first(): Int = sampler.next(engine.prefill(cache, prompt, cache.length, goOn))

    private fun following(): Int {
        goOn()
        return if (chooses) engine.choose(cache, last, 0, 1).get(0).toInt() else sampler.next(engine.step(cache, last, 0, 1))
    }

    /** What was held back, now that nothing follows. */
    private fun rest(): String {
        val (shown, found) = stops.push(detokenizer.flush())
        return if (found) shown else shown + stops.flush()
    }
}
