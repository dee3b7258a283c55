package dev.edgelm.decode

import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.speculate.AnswerDrafts

/**
 * The decode loop: what of [prompt] is not in the cache goes in, then tokens come out, several of a step where [drafts] are
 * right, until the cache is full. The last token given out is never in the cache, whenever this is left.
 *
 * Every token is drawn from the model's own logits, in the order of the text, exactly as without a draft: random numbers and
 * penalties go the same way, and so does the answer (Leviathan et al. 2023, for a draft that is certain of each guess).
 *
 * [goOn] is called before every step, and throws where the answer is to end.
 */
internal class DecodeLoop(
    private val engine: Engine,
    private val cache: KvCache,
    private val prompt: IntArray,
    private val sampler: Sampler,
    private val goOn: () -> Unit,
    private val drafts: AnswerDrafts? = null,
) : Iterator<Int> {
    private val chooses = engine.chooses && !sampler.needsLogits
    private val tokens = IntArray(1 + (drafts?.draft?.tokens?.size ?: 0)) // of a step: the text's last, and a draft
    private val sampled = IntArray(tokens.size) // what follows each
    private var begun = false
    private var start = 0 // rows in the cache before the step
    private var ready = 0 // tokens that the step brought
    private var given = 0 // and that were given out

    override fun hasNext() = !begun || given < ready || cache.room > 0

    override fun next(): Int {
        if (!hasNext()) throw NoSuchElementException()
        if (given == ready) {
            ready = if (begun) step(drafts?.propose(engine, cache) ?: 0) else first()
            given = 0
            begun = true
        }
        tokens[0] = sampled[given++]
        cache.length = start + given // rows of rejected tokens are overwritten
        return tokens[0]
    }

    /** Run the prompt, and draw the answer's first token. */
    private fun first(): Int {
        cache.prompt = prompt.size
        if (prompt.size - cache.length == 1) { // an encoder-decoder's start is a step like any other
            tokens[0] = prompt.last()
            step(0)
        } else {
            sampled[0] = sampler.next(engine.prefill(cache, prompt, cache.length, goOn))
            start = prompt.size - 1
        }
        drafts?.begin(sampled)
        return 1
    }

    /** Run the text's last token and the first [drafted] of the draft; how many tokens the text goes on with. */
    private fun step(drafted: Int): Int {
        goOn()
        start = cache.length
        drafts?.draft?.tokens?.copyInto(tokens, 1, 0, drafted)
        val size = drafted + 1
        val begun = System.nanoTime()
        val within = chooses && this.begun && !sampler.unsure // an answer's first logits are looked at: they may be no numbers
        val chosen = if (within) engine.choose(cache, tokens, 0, size, size) else null
        val logits = if (within) null else engine.step(cache, tokens, 0, size, size)
        val seconds = (System.nanoTime() - begun) / 1e9
        cache.length = start
        var count = 0
        do {
            sampled[count] = if (chosen != null) chosen.get(count).toInt() else sampler.next(logits!!, count)
            if (chosen != null && !sampler.accepts(sampled[count])) break // the next step will say, which has logits
            count++
        } while (count < size && sampled[count - 1] == tokens[count])
        if (this.begun) drafts?.accept(size, seconds, sampled, count)
        return count
    }
}
