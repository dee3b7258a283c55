package dev.edgelm.speech

import dev.edgelm.decode.BeamOptions
import dev.edgelm.decode.BeamSearch
import dev.edgelm.decode.Circling
import dev.edgelm.decode.Sampler
import dev.edgelm.decode.likeliest
import dev.edgelm.decode.rules.Processor
import dev.edgelm.engine.Encoder
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.text.Tokenizer
import java.nio.FloatBuffer
import java.util.zip.Deflater
import kotlin.math.exp

/**
 * What one window says. [text] is without timestamps and outer spaces; the measures judge it. [imagined]: the model would say
 * so of silence, too.
 */
internal class Decoded(
    val tokens: List<Int>,
    val text: String,
    val avgLogprob: Double,
    val noSpeechProb: Double?,
    val temperature: Double,
) {
    var imagined = false

    /** Bytes of the text over bytes of what zlib makes of it. */
    val compressionRatio: Double

    init {
        val data = text.toByteArray()
        val deflater = Deflater()
        deflater.setInput(data)
        deflater.finish()
        val made = ByteArray(CHUNK)
        while (!deflater.finished()) deflater.deflate(made)
        compressionRatio = data.size / deflater.bytesWritten.toDouble()
        deflater.end()
    }

    private companion object {
        const val CHUNK = 1024
    }
}

/**
 * Decodes one window after the other: [hear] it, then [decode] it. The rules are those of the reference implementation
 * (openai/whisper, decoding.py and decode_with_fallback in transcribe.py; Radford et al. 2022, section 4.5).
 *
 * [room]: memory for what the encoder makes. [goOn] is called before every step, and throws where the transcription is
 * to end.
 */
internal class Decoder(
    private val engine: Engine,
    private val tokenizer: Tokenizer,
    private val options: TranscribeOptions,
    private val room: Encoder.Room,
    private val goOn: () -> Unit,
) : AutoCloseable {
    private val manifest = engine.bundle.manifest
    private val speech = manifest.speech!!
    private val end = manifest.tokens.eos.first()
    private val cache = newCache()
    private val samplers = HashMap<Double, Sampler>() // each draws on through all windows
    private var samples = FloatArray(0) // what is heard
    private var count = 0
    private var window = 0 // samples of it that the encoder read, with silence
    private var last: Int? = null // its end, where the encoder reads less than a window: see `Rules`
    private var tried: Decoded? = null // the first text, where others were tried after it
    private val first = FloatArray(manifest.dims.vocabSize) // logits after the prompt
    private val scores = FloatArray(first.size)
    private val shown = FloatBuffer.wrap(scores)
    private val token = IntArray(1)

    /**
     * Encode the first [count] of [samples], up to a window, which stay as they are until it is decoded; what follows is
     * about this window.
     */
    fun hear(samples: FloatArray, count: Int) {
        this.samples = samples
        this.count = count
        val window = if (manifest.encoder!!.anyLength) encoderWindow(count, speech) else speech.windowSamples
        last = if (window < speech.windowSamples) (count + speech.tick - 1) / speech.tick else null
        encode(samples, count, window)
    }

    /** Encode the first [count] of [samples] and silence after them, [window] samples in all. */
    private fun encode(samples: FloatArray, count: Int, window: Int) {
        goOn()
        this.window = window
        // The cache takes it while the engine cannot be closed, and closes it with itself.
        engine.encode { encoder -> encoder.encodeAudio(samples, 0, count, room, window).also { cache.reset(it) } }
    }

    /** The likeliest language of the window, from one step after the start token. */
    fun detectLanguage(): String {
        cache.truncate(0)
        token[0] = speech.start
        val logits = engine.step(cache, token, 0, 1)
        return speech.languages.maxBy { logits.get(it.value) }.key
    }

    /**
     * The text after [prompt], at the first temperature whose result is good enough, or else the last one. Where the
     * encoder read less than a window and the text is in doubt, it is heard again in a whole one.
     */
    fun decode(prompt: IntArray): Decoded {
        if (last != null) {
            val decoded = decode(prompt, options.temperatures.take(1))
            if (!isDoubtful(decoded) && evidence(prompt, decoded)?.all { it.isWeak } != true) return decoded
            last = null
            encode(samples, count, speech.windowSamples)
        }
        val decoded = decode(prompt, options.temperatures)
        if (!isSilence(decoded)) decoded.imagined = evidence(prompt, decoded, tried)?.all { it.isImagined } == true
        return decoded
    }

    private fun decode(prompt: IntArray, temperatures: List<Double>): Decoded {
        val noSpeechProb = prefill(prompt)
        var decoded: Decoded? = null
        tried = null
        for (temperature in temperatures) {
            val beams = temperature == 0.0 && options.beams > 1
            val (tokens, logprob) = if (beams) search(prompt) else sample(prompt, temperature)
            val text = tokenizer.decode(tokens.filter { it < end }.toIntArray()).stripped()
            tried = tried ?: decoded
            decoded = Decoded(tokens, text, logprob / (tokens.size + 1), noSpeechProb, temperature)
            if (!hasFailed(decoded)) break
        }
        return decoded!!
    }

    /**
     * What the sound has to do with a text, and with another [tried], next to silence, which the model has heard afterwards;
     * null where nobody doubts that somebody spoke.
     */
    private fun evidence(prompt: IntArray, decoded: Decoded, tried: Decoded? = null): List<Evidence>? {
        val threshold = options.noSpeechThreshold ?: return null
        if ((decoded.noSpeechProb ?: return null) <= threshold / 2) return null
        if (decoded.avgLogprob >= SURE || decoded.text.isEmpty()) return null
        // What was said before makes words likely in silence, too.
        val alone = prompt.copyOfRange(prompt.indexOf(speech.start), prompt.size)
        val texts = listOfNotNull(decoded, tried).filter { folded(it.text).isNotEmpty() }.map { it.tokens.toIntArray() + end }
        val heard = texts.map { logProbabilities(engine, cache, alone, it, scores, goOn) }
        encode(NOTHING, 1, window)
        val silent = texts.map { logProbabilities(engine, cache, alone, it, scores, goOn) }
        return texts.mapIndexed { i, text ->
            val repeated = saidBefore(text)
            val words = text.indices.filter { text[it] < end }
            Evidence(words.map { heard[i][it] - silent[i][it] }, words.map { repeated[it] })
        }
    }

    /** Whether a window has no speech: the model says so, and is not sure of its text, or imagined it. */
    fun isSilence(decoded: Decoded): Boolean {
        if (decoded.imagined) return true
        if (options.noSpeechThreshold == null || (decoded.noSpeechProb ?: return false) <= options.noSpeechThreshold) {
            return false
        }
        return options.logprobThreshold == null || decoded.avgLogprob <= options.logprobThreshold
    }

    /** Whether a whole window may say better what was heard in a short one, whatever the options accept. */
    private fun isDoubtful(decoded: Decoded): Boolean {
        val loops = decoded.compressionRatio > TranscribeOptions.REPETITIVE || repeats(decoded.text)
        return loops || decoded.avgLogprob < TranscribeOptions.UNSURE || isSilence(decoded)
    }

    /** Whether another temperature may do better. */
    private fun hasFailed(decoded: Decoded): Boolean {
        val unsure = options.logprobThreshold != null && decoded.avgLogprob < options.logprobThreshold
        if (unsure && isSilence(decoded)) return false
        val limit = options.compressionRatioThreshold
        return unsure || limit != null && decoded.compressionRatio > limit
    }

    /** Run the prompt; the chance that there is no speech, which the model gives after its start token. */
    private fun prefill(prompt: IntArray): Double? {
        cache.truncate(0)
        val start = prompt.indexOf(speech.start) // earlier text stands before it
        for (at in 0 until start step PREFILL_CHUNK) {
            goOn()
            engine.step(cache, prompt, at, minOf(PREFILL_CHUNK, start - at))
        }
        goOn()
        val rest = prompt.size - start
        val logits = engine.step(cache, prompt, start, rest, intArrayOf(0, rest - 1))
        logits.get(scores).get(first).position(0)
        return speech.noSpeech?.let { exp(logProbability(scores, it)) }
    }

    /** How many tokens may be generated; the last one is never run. */
    private fun most(prompt: IntArray) = minOf(engine.context / 2, engine.context - prompt.size + 1)

    /**
     * Tokens after the prompt that was run, without the end token, and the sum of their log probabilities with the end
     * token's.
     */
    private fun sample(prompt: IntArray, temperature: Double): Pair<List<Int>, Double> {
        val most = most(prompt)
        val rules = Rules(speech, end, last)
        val said = IntArray(most)
        val sampler = sampler(temperature)
        var size = 0
        var logprob = 0.0
        cache.truncate(prompt.size)
        first.copyInto(scores)
        while (true) {
            rules.apply(scores, said, size)
            token[0] = sampler?.next(shown) ?: likeliest(scores)
            logprob += logProbability(scores, token[0])
            if (token[0] == end) break
            said[size++] = token[0]
            if (size == most) break
            goOn()
            engine.step(cache, token, 0, 1).get(scores).position(0)
        }
        return Pair(said.take(size), logprob)
    }

    /** What [sample] gives, by beam search. */
    private fun search(prompt: IntArray): Pair<List<Int>, Double> {
        val rules = Rules(speech, end, last)
        val processor = Processor { text, length, scores -> rules.apply(scores, text.copyOfRange(1, length), length - 1) }
        cache.truncate(prompt.size - 1) // the search runs the last token itself, and is shown none before it
        val wanted = BeamOptions(options.beams, most(prompt), circles = circling)
        val begun = intArrayOf(prompt.last())
        val search = BeamSearch(engine, cache, begun, wanted, setOf(end), listOf(processor), forced = 0, goOn)
        search.tokens().forEach { _ -> }
        val best = search.found[0]
        return Pair(best.tokens.asList().let { if (it.last() == end) it.dropLast(1) else it }, best.logProbability)
    }

    /** What becomes of circles at temperature 0: a text that would be tried again is not led elsewhere. */
    private val circling: Circling
        get() {
            val tries = options.temperatures.size > 1 && options.compressionRatioThreshold != null
            return if (tries || last != null) Circling.ALLOW else options.circles
        }

    /** What chooses the tokens of a text; null: the likeliest ones are. */
    private fun sampler(temperature: Double): Sampler? {
        val made = { Sampler(options.sampling(temperature), IntArray(0), scores.size) }
        if (temperature > 0) return samplers.getOrPut(temperature, made)
        return if (circling == Circling.AVOID) made() else null
    }

    /** In which beams have rows of their own for a text, which takes half of the context at most. */
    private fun newCache(): KvCache {
        if (options.beams == 1) return engine.newCache(engine.context)
        return engine.makeCache((1 + options.beams) * (engine.context / 2))
    }

    override fun close() = cache.close()

    private companion object {
        const val SURE = -0.15 // mean log probability of a text that noise does not lead to
        val NOTHING = FloatArray(1)
        const val PREFILL_CHUNK = 64 // tokens of earlier text run at once: 223 took 48 MB more
    }
}

/** A text without outer spaces, as Python's `strip` does it. */
internal fun String.stripped(): String = trim { it.isWhitespace() || it == '\u0085' }
