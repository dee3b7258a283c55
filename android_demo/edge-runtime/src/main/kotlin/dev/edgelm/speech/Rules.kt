package dev.edgelm.speech

import dev.edgelm.bundle.Speech
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.roundToInt

/**
 * What Whisper may say next. Some tokens are never said and some not first. Timestamps come in pairs, never go back,
 * begin the text, and are taken where they are likelier in sum than any single word. The rules are those of the
 * reference implementation (openai/whisper, decoding.py: SuppressBlank, SuppressTokens, ApplyTimestampRules).
 *
 * [end]: the token that ends a text. [last]: the timestamp at which the sound ends, counted from 0.00; null: the model
 * knows. After it there are none: what the model gives to later ones it gives to this, and the text ends there.
 */
internal class Rules(private val speech: Speech, private val end: Int, last: Int?) {
    private val zero = speech.timestampBegin
    private val last = last?.let { zero + it }
    private val over = last?.let { zero + maxOf(1, it - (UNSAID_S * speech.framesPerSecond).roundToInt()) }

    /** Forbid tokens in [scores] [V] after the first [count] tokens of [text]. */
    fun apply(scores: FloatArray, text: IntArray, count: Int) {
        if (count == 0) for (token in speech.beginSuppress) scores[token] = FORBIDDEN
        for (token in speech.suppress) scores[token] = FORBIDDEN
        scores[speech.noTimestamps] = FORBIDDEN
        if (last != null) {
            scores[last] = together(scores, last)
            scores.fill(FORBIDDEN, last + 1)
        }
        if (count == 0) open(scores) else goOn(scores, text, count)
        if (together(scores, zero) > largest(scores, 0, zero)) scores.fill(FORBIDDEN, 0, zero)
    }

    private fun open(scores: FloatArray) {
        scores.fill(FORBIDDEN, 0, zero)
        speech.maxInitialTimestampIndex?.let { scores.forbid(zero + it + 1, scores.size) }
    }

    private fun goOn(scores: FloatArray, text: IntArray, count: Int) {
        val isTime = text[count - 1] >= zero
        val opens = isTime && (count < 2 || text[count - 2] >= zero)
        if (opens) {
            scores.fill(FORBIDDEN, zero) // words follow
        } else if (isTime) {
            scores.fill(FORBIDDEN, 0, end) // it closed a segment: the next one's beginning follows, or the end
            if (over != null) scores.forbid(over, scores.size)
        }
        val latest = (count - 1 downTo 0).firstOrNull { text[it] >= zero } ?: return
        // A segment may begin where the last one ended, but none has no length.
        scores.forbid(zero, text[latest] + if (isTime && !opens) 0 else 1)
    }

    private companion object {
        const val FORBIDDEN = Float.NEGATIVE_INFINITY
        const val UNSAID_S = 0.1 // at the end of a sound, in which nothing begins to be said

        fun FloatArray.forbid(from: Int, to: Int) {
            if (from < minOf(to, size)) fill(FORBIDDEN, from, minOf(to, size))
        }

        /** The score of all tokens from [from] on as if they were one. */
        fun together(scores: FloatArray, from: Int): Float {
            val largest = largest(scores, from, scores.size)
            if (largest == FORBIDDEN) return largest
            return largest + ln(sumOfExp(scores, from, largest)).toFloat()
        }
    }
}

/** The log-softmax of [scores] [V] at [token]. */
internal fun logProbability(scores: FloatArray, token: Int): Double {
    val largest = largest(scores, 0, scores.size)
    return scores[token] - largest - ln(sumOfExp(scores, 0, largest))
}

private fun largest(scores: FloatArray, from: Int, to: Int): Float {
    var largest = Float.NEGATIVE_INFINITY
    for (i in from until to) if (scores[i] > largest) largest = scores[i]
    return largest
}

/** Of the scores from [from] on, less the [largest]. */
private fun sumOfExp(scores: FloatArray, from: Int, largest: Float): Double {
    var sum = 0.0
    for (i in from until scores.size) if (scores[i] > Float.NEGATIVE_INFINITY) sum += exp((scores[i] - largest).toDouble())
    return sum
}
