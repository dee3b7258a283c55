package dev.edgelm.speech

import dev.edgelm.InputException
import dev.edgelm.engine.Encoder
import dev.edgelm.engine.Engine
import dev.edgelm.text.Tokenizer

/**
 * One transcription, window by window. Sound longer than a window is heard by the reference's sequential rules
 * (openai/whisper, transcribe.py): each window begins where the last finished segment of the one before ended, and is
 * given that one's text.
 */
internal class Transcription(
    engine: Engine,
    private val tokenizer: Tokenizer,
    private val samples: Samples,
    private val options: TranscribeOptions,
    room: Encoder.Room,
    goOn: () -> Unit,
) : AutoCloseable {
    private val manifest = engine.bundle.manifest
    private val speech = manifest.speech!!
    private val rate = speech.sampleRate
    private val end = manifest.tokens.eos.first()
    private val decoder = Decoder(engine, tokenizer, options, room, goOn)
    private val window = FloatArray(speech.windowSamples)
    private val most = engine.context / 2 - 1 // tokens of earlier text in a prompt, after the one that announces it
    private var said = emptyList<Int>() // tokens of earlier windows, for the next one's prompt
    private var language = if (speech.languages.isEmpty()) "en" else options.language
    private var position = 0 // where the window begins

    /** The segments of the next window, of which there may be none; null where the sound has ended. */
    fun next(): List<Segment>? {
        val held = minOf(samples.size - position, window.size)
        if (position == 0 && held in 1 until (SHORTEST_S * rate).toInt()) {
            throw InputException("There is less than $SHORTEST_S s of sound, and nothing can be said in that time.")
        }
        if (held < rate / FRAMES_PER_SECOND) return null
        samples.read(position, held, window)
        val quiet = if (options.skipSilence) silenceToSkip(window, held, rate, speech.tick) else 0
        if (quiet > 0) {
            position += quiet
            return emptyList()
        }
        val count = if (options.skipSilence) soundBeforeGap(window, held, rate, speech.tick) else held
        decoder.hear(window, count)
        val language = language ?: decoder.detectLanguage()
        val decoded = decoder.decode(prompt(language))
        if (decoder.isSilence(decoded)) {
            position += count
            return emptyList()
        }
        this.language = language // noise has none: it is heard in the first window with speech
        val last = count == held && held < window.size
        val (spans, heard) = split(decoded.tokens, speech, count)
        val segments = spans.mapNotNull { place(it, decoded, language, if (last) Int.MAX_VALUE else count) }
        position += heard
        said = if (!options.previousText || decoded.temperature > RESET_TEMPERATURE) {
            emptyList()
        } else {
            (said + segments.flatMap { it.tokens }).takeLast(most)
        }
        return segments
    }

    private fun prompt(language: String): IntArray {
        val prompt = ArrayList<Int>()
        if (said.isNotEmpty() && speech.previous != null) {
            prompt += speech.previous
            prompt += said
        }
        prompt += speech.start
        speech.languages[language]?.let { prompt += it }
        speech.tasks[options.task.code]?.let { prompt += it }
        return prompt.toIntArray()
    }

    /** The segment of a part of the window that has text and a length; it ends before [latest], and so before others. */
    private fun place(span: Span, decoded: Decoded, language: String, latest: Int): Segment? {
        val text = tokenizer.decode(span.tokens.filter { it < end }.toIntArray())
        val end = minOf(span.end, latest)
        if (text.stripped().isEmpty() || end <= span.start) return null
        return Segment(
            startSeconds = (position + span.start) / rate.toDouble(),
            endSeconds = (position + end) / rate.toDouble(),
            text = text,
            tokens = span.tokens.toList(),
            language = language,
            avgLogprob = decoded.avgLogprob,
            compressionRatio = decoded.compressionRatio,
            noSpeechProb = decoded.noSpeechProb,
            temperature = decoded.temperature,
        )
    }

    override fun close() = decoder.close()

    private companion object {
        const val FRAMES_PER_SECOND = 100 // of the spectrogram: less than one of them is nothing to hear
        const val SHORTEST_S = 0.1 // of sound in all; of less Whisper writes a word all the same
        const val RESET_TEMPERATURE = 0.5 // above it a text is too unsure to lead the next window's
    }
}
