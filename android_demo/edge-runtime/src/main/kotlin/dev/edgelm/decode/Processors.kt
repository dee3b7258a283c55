package dev.edgelm.decode

import dev.edgelm.bundle.Generation

/**
 * A rule that changes the scores of the next token, as the logits processor of transformers that its documentation
 * names, for greedy decoding, sampling and beams. One for each answer.
 */
internal fun interface Processor {
    /**
     * Change [scores] [V] of what may follow the first [length] tokens of [text], with which the decoder's own first
     * tokens count: logits where one token is chosen, log probabilities in a beam search.
     */
    fun process(text: IntArray, length: Int, scores: FloatArray)
}

private const val FORBIDDEN = Float.NEGATIVE_INFINITY

/** Makes tokens that occurred less likely (RepetitionPenaltyLogitsProcessor). */
internal class RepetitionPenalty(penalty: Double) : Processor {
    private val penalty = penalty.toFloat()
    private var before = FloatArray(0) // so that a token that occurred twice is not penalized twice

    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        if (before.size < length) before = FloatArray(2 * length)
        for (i in 0 until length) before[i] = scores[text[i]]
        for (i in 0 until length) scores[text[i]] = before[i].let { if (it < 0) it * penalty else it / penalty }
    }
}

/** Forbids every token that would complete an n-gram which the text has already (NoRepeatNGramLogitsProcessor). */
private class NoRepeatNgrams(private val size: Int) : Processor {
    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        for (start in 0..length - size) {
            if (same(text, start, text, length + 1 - size, size - 1)) scores[text[start + size - 1]] = FORBIDDEN
        }
    }
}

/** Forbids every token that would complete one of some runs of tokens (NoBadWordsLogitsProcessor). */
private class BadWords(words: List<List<Int>>) : Processor {
    private val words = words.map { it.toIntArray() }

    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        for (word in words) {
            val begun = word.size - 1
            if (begun <= length && same(word, 0, text, length - begun, begun)) scores[word[begun]] = FORBIDDEN
        }
    }
}

/** Forbids the end tokens before a text has [least] tokens (MinLengthLogitsProcessor). */
private class MinLength(private val least: Int, private val ends: Collection<Int>) : Processor {
    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        if (length < least) for (token in ends) scores[token] = FORBIDDEN
    }
}

/** Makes [token] the last of [most] tokens (ForcedEOSTokenLogitsProcessor). */
private class ForcedEnd(private val most: Int, private val token: Int) : Processor {
    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        if (length != most - 1) return
        scores.fill(FORBIDDEN)
        scores[token] = 0f
    }
}

/**
 * Forbids some tokens (SuppressTokensLogitsProcessor); with [at] only as the token that follows so many
 * (SuppressTokensAtBeginLogitsProcessor).
 */
private class Suppress(private val tokens: List<Int>, private val at: Int? = null) : Processor {
    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        if (at == null || at == length) for (token in tokens) scores[token] = FORBIDDEN
    }
}

private fun same(a: IntArray, aStart: Int, b: IntArray, bStart: Int, count: Int): Boolean {
    for (i in 0 until count) if (a[aStart + i] != b[bStart + i]) return false
    return true
}

/**
 * The rules that [settings] ask for, in the order in which transformers applies them. [begin]: tokens that the decoder
 * begins with; [least], [most]: tokens of a text, with these.
 */
internal fun makeProcessors(settings: Generation, eos: Collection<Int>, begin: Int, least: Int, most: Int) = buildList {
    if (settings.repetitionPenalty != 1.0) add(RepetitionPenalty(settings.repetitionPenalty))
    if (settings.noRepeatNgramSize > 0) add(NoRepeatNgrams(settings.noRepeatNgramSize))
    if (settings.badWords.isNotEmpty()) add(BadWords(settings.badWords))
    if (least > begin) add(MinLength(least, eos))
    settings.forcedEos?.let { add(ForcedEnd(most, it)) }
    if (settings.suppress.isNotEmpty()) add(Suppress(settings.suppress))
    if (settings.beginSuppress.isNotEmpty()) add(Suppress(settings.beginSuppress, begin))
}
