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

/**
 * The tokens of a [text] that repeat what it said before, together with the one before or after them. A model that goes in
 * circles predicts these from its text alone, whatever there is to hear.
 */
internal fun saidBefore(text: IntArray): BooleanArray {
    val repeated = BooleanArray(text.size)
    val pairs = HashSet<Pair<Int, Int>>()
    for (i in 0 until text.size - 1) {
        if (!pairs.add(text[i] to text[i + 1])) repeated.fill(true, i, i + 2)
    }
    return repeated
}

/** By how much [likelier] a sound made the log probability of each word of a text, and which words were [repeated]. */
internal class Evidence(private val likelier: List<Double>, private val repeated: List<Boolean>) {
    /** The text has nothing to do with the sound. */
    val isImagined get() = gained < LIKELIER && likelier.sum() < ENOUGH

    /** The text may have nothing to do with the sound: another window may say better. */
    val isWeak get() = gained < 1.5 * LIKELIER

    /**
     * The mean of words that do not repeat others; of several that which gained most does not count: noise may lead to
     * another sentence than silence does, whose first word the rest follows from.
     */
    private val gained: Double
        get() {
            val counted = likelier.filterIndexed { i, _ -> !repeated[i] }
            return (if (counted.size < FEW) counted else counted.sorted().dropLast(1)).average()
        }
}
