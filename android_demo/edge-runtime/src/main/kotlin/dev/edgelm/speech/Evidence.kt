package dev.edgelm.speech

import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache

private const val LIKELIER = 0.6 // by which words that were said are likelier in the mean: 1.8 times
private const val ENOUGH = 15.0 // by which they are in all: what is said again and again follows from the words before it
private const val FEW = 4 // words of which even one tells something
private const val ROWS = 8 // of logits at once: 2 MB

/**
 * The log probability of each token of [text] after [prompt] and those before it, by the model alone: without what rules
 * forbid. [cache], whose encoder's output is what was heard, is written over, and [scores] too.
 */
internal fun logProbabilities(
    engine: Engine,
    cache: KvCache,
    prompt: IntArray,
    text: IntArray,
    scores: FloatArray,
    goOn: () -> Unit,
): DoubleArray {
    cache.truncate(0)
    val tokens = prompt + text
    val begun = prompt.size - 1
    if (begun > 0) engine.step(cache, tokens, 0, begun)
    val found = DoubleArray(text.size)
    for (begin in text.indices step ROWS) {
        goOn()
        val count = minOf(ROWS, text.size - begin)
        val logits = engine.step(cache, tokens, begun + begin, count, IntArray(count) { it })
        for (row in 0 until count) found[begin + row] = logProbability(scores.also(logits::get), text[begin + row])
        logits.position(0)
    }
    return found
}

/** Whether a text has nothing to do with its sound, by how much likelier that made the log probability of its words. */
internal fun isImagined(likelier: List<Double>) = gained(likelier) < LIKELIER && likelier.sum() < ENOUGH

/** Whether a text may have nothing to do with its sound: another window may say better. */
internal fun isWeak(likelier: List<Double>) = gained(likelier) < 1.5 * LIKELIER

/**
 * The mean; of several words that which gained most does not count: noise may lead to another sentence than silence does,
 * whose first word the rest follows from.
 */
private fun gained(likelier: List<Double>) =
    (if (likelier.size < FEW) likelier else likelier.sorted().dropLast(1)).average()
