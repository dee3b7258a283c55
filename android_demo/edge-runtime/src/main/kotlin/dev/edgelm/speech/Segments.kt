package dev.edgelm.speech

import dev.edgelm.bundle.Speech

/**
 * What was said from [startSeconds] to [endSeconds]. Joined, the texts are the whole transcript: most begin with a space.
 *
 * @property tokens the ids of the words, with the timestamps around them.
 * @property language the code of the language that was named or heard.
 * @property avgLogprob per token, of the window in which this was heard, as are those that follow.
 * @property compressionRatio bytes of the text over bytes of what zlib makes of it.
 * @property noSpeechProb the chance that nobody speaks; null where the model has no token for it.
 * @property temperature at which the text was found.
 */
data class Segment(
    val startSeconds: Double,
    val endSeconds: Double,
    val text: String,
    val tokens: List<Int>,
    val language: String,
    val avgLogprob: Double,
    val compressionRatio: Double,
    val noSpeechProb: Double?,
    val temperature: Double,
)

/** A part of a window: where it begins and ends, in samples from the window's begin, and its tokens. */
internal class Span(val start: Int, val end: Int, val tokens: List<Int>)

/**
 * The segments among [tokens] of a window of [window] samples, and by how many samples to go on.
 *
 * Two timestamps in a row end one segment and begin the next. What follows the last pair is dropped, and heard again in
 * the next window, which begins there; unless a single timestamp ends the text, after which nothing was said. The rules
 * are those of the reference implementation (openai/whisper, transcribe.py).
 */
internal fun split(tokens: List<Int>, speech: Speech, window: Int): Pair<List<Span>, Int> {
    val tick = speech.tick
    val begin = speech.timestampBegin
    val size = tokens.size
    val closed = size >= 2 && tokens[size - 2] < begin && tokens[size - 1] >= begin
    val cuts = (1 until size).filterTo(ArrayList()) { tokens[it - 1] >= begin && tokens[it] >= begin }
    if (cuts.isEmpty()) {
        val last = tokens.lastOrNull { it >= begin } ?: begin
        val end = if (last == begin) window else (last - begin) * tick
        return Pair(listOf(Span(0, end, tokens)), window)
    }
    if (closed) cuts += size
    var from = 0
    val spans = cuts.map { to ->
        val part = tokens.subList(from, to)
        from = to
        Span((part.first() - begin) * tick, (part.last() - begin) * tick, part)
    }
    // No timestamp of a pair can be 0.00 by the rules; a window must never be heard twice all the same.
    val end = spans.last().end
    return Pair(spans, if (closed || end <= 0) window else minOf(end, window))
}

/** Samples from one timestamp to the next. */
internal val Speech.tick: Int get() = sampleRate / framesPerSecond
