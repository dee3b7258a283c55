package dev.edgelm.decode.rules

import dev.edgelm.bundle.Generation
import dev.edgelm.decode.SamplingOptions

/*
 * Rules that change which token may come next: one file each in this folder, as in Python's `edge.runtime.decode.rules`, and
 * in the same order. `tests/android/rules.jsonl` says what each does. Besides these there are [Circles], and the
 * timestamps of a transcription (`dev.edgelm.speech.Rules`).
 */

/**
 * What the rules of one text read: what is asked for, the bundle's settings for what is not, the tokens that end a text
 * ([eos]), how many it begins with ([begin]) and may have, with these ([most]).
 */
internal class RuleSettings(
    val sampling: SamplingOptions = SamplingOptions(),
    val bundle: Generation = Generation(),
    val eos: Collection<Int> = emptyList(),
    val begin: Int = 0,
    val most: Int = 0,
    val noRepeatNgram: Int? = null,
    val minTokens: Int? = null,
)

/** A rule that changes the scores of the next token, for greedy decoding, sampling and beams. One for each answer. */
internal fun interface Processor {
    /**
     * Change [scores] [V] of what may follow the first [length] tokens of [text], with which the decoder's own first
     * tokens count: logits where one token is chosen, log probabilities in a beam search.
     */
    fun process(text: IntArray, length: Int, scores: FloatArray)
}

/** A rule that leaves out tokens before one is drawn. */
internal fun interface Threshold {
    /** The smallest value of the tokens that are left, a logit or a weight, that stays. */
    fun least(left: Left): Float
}

/** What changes the scores of all tokens, by the text so far. */
internal fun makeProcessors(settings: RuleSettings): List<Processor> = SCORES.mapNotNull { it(settings) }

/** What says by logits which tokens are drawn from. */
internal fun logitThresholds(settings: RuleSettings): List<Threshold> = LOGITS.mapNotNull { it(settings) }

/** What says by weights which tokens are drawn from: of several the highest threshold counts. */
internal fun weightThresholds(settings: RuleSettings): List<Threshold> = WEIGHTS.mapNotNull { it(settings) }

private val SCORES: List<(RuleSettings) -> Processor?> = listOf(
    ::repetitionPenalty, ::noRepeatNgram, ::badWords, ::minLength, ::forcedEnd, ::suppress, ::beginSuppress,
)
private val LOGITS: List<(RuleSettings) -> Threshold?> = listOf(::topK)
private val WEIGHTS: List<(RuleSettings) -> Threshold?> = listOf(::topP, ::minP)

internal const val FORBIDDEN = Float.NEGATIVE_INFINITY

/** Whether [count] tokens of two texts are the same. */
internal fun same(a: IntArray, aStart: Int, b: IntArray, bStart: Int, count: Int): Boolean {
    for (i in 0 until count) if (a[aStart + i] != b[bStart + i]) return false
    return true
}
