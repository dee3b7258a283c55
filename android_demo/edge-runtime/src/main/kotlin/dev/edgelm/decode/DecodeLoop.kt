package dev.edgelm.decode

import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache

/**
 * The decode loop: what of [prompt] is not in the cache goes in, then tokens come out, one of a step, until the cache is
 * full. The last token is never in the cache, whenever this is left.
 *
 * [goOn] is called before every step, and throws where the answer is to end.
 */
internal class DecodeLoop(
    private val engine: Engine,
    private val cache: KvCache,
    private val prompt: IntArray,
    private val sampler: Sampler,
    private val goOn: () -> Unit,
) : Iterator<Int> {
    private val chooses = engine.chooses && !sampler.needsLogits
    private val last = IntArray(1)
    private var begun = false

    override fun hasNext() = !begun || cache.room > 0

    override fun next(): Int {
        if (!hasNext()) throw NoSuchElementException()
        if (begun) {
            last[0] = following()
        } else if (prompt.size - cache.length == 1) { // an encoder-decoder's start is a step like any other
            last[0] = prompt.last()
            last[0] = following()
        } else {
            last[0] = sampler.next(engine.prefill(cache, prompt, cache.length, goOn))
        }
        begun = true
        return last[0]
    }

    private fun following(): Int {
        goOn()
        return if (chooses) engine.choose(cache, last, 0, 1).get(0).toInt() else sampler.next(engine.step(cache, last, 0, 1))
    }
}
