package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Generation
import dev.edgelm.decode.Answering
import dev.edgelm.decode.BeamOptions
import dev.edgelm.decode.BeamSearch
import dev.edgelm.decode.DecodeLoop
import dev.edgelm.decode.Ends
import dev.edgelm.decode.Sampler
import dev.edgelm.decode.rules.Processor
import dev.edgelm.decode.rules.RuleSettings
import dev.edgelm.decode.rules.makeProcessors
import dev.edgelm.engine.KvCache
import dev.edgelm.engine.Slots
import dev.edgelm.memory.Plan
import dev.edgelm.text.Framing
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.withContext

/**
 * An encoder-decoder's bundle in memory, which turns a text into another: a translation, a summary. Several threads may
 * use it; [close] it when no more outputs are wanted.
 */
class EdgeText2Text private constructor(
    private val loaded: Loaded, private val memory: Long?, private val dispatcher: CoroutineDispatcher,
) : AutoCloseable {
    private val engine = loaded.engine
    private val manifest = loaded.bundle.manifest
    private val eos = manifest.tokens.eos.toSet()
    private val defaults = manifest.generation ?: Generation()
    private val framing = Framing(manifest.text!!, loaded.tokenizer, defaults.forcedBos)
    private val slots = Slots(engine)

    val bundle: Bundle get() = loaded.bundle

    /** What it takes, as it was planned before it was loaded. */
    val plan: Plan get() = loaded.plan

    /** The codes of a multilingual model's languages. */
    val languages: List<String> get() = manifest.text!!.languages.keys.sorted()

    /** Maximum tokens of a text. */
    val maxSource: Int get() = if (memory == null) manifest.encoder!!.maxLength else plan.source

    /**
     * Turn a text into another, piece by piece as tokens come; with beams, as they become certain. Cancelling the flow's
     * collector ends the output before the next step.
     *
     * @throws InputException (in the flow) the text is empty or too long, or an option does not fit the model.
     */
    fun generate(text: String, options: Text2TextOptions = Text2TextOptions()): Flow<Piece> =
        streaming(dispatcher) { goOn ->
            val asked = System.nanoTime()
            val source = promptIds(text, options)
            val task = task(options)
            slots.use(task.rows) { slot ->
                slot.read(engine, source)
                val tokens = if (task.beams.beams > 1) search(slot.cache, task, source, goOn).tokens() else loop(slot.cache, task, source, goOn)
                for (piece in Answering(tokens, loaded.tokenizer, task.ends, source.size, asked = asked)) emit(piece)
            }
        }

    /**
     * The [Text2TextOptions.nBest] best outputs, the best first. Where there is one beam, one text and no score.
     *
     * @throws InputException see [generate].
     */
    suspend fun candidates(text: String, options: Text2TextOptions = Text2TextOptions()): List<Candidate> =
        withContext(dispatcher) {
            val job = currentCoroutineContext()
            val source = promptIds(text, options)
            val task = task(options)
            slots.use(task.rows) { slot ->
                slot.read(engine, source)
                if (task.beams.beams == 1) {
                    return@withContext listOf(alone(loop(slot.cache, task, source) { job.ensureActive() }, task.ends))
                }
                val search = search(slot.cache, task, source) { job.ensureActive() }
                search.tokens().forEach { _ -> }
                search.found.map {
                    Candidate(shown(it.tokens, options.stop), it.tokens.asList(), it.score, it.logProbability, it.finish)
                }
            }
        }

    /** The token ids that the encoder gets for this text; InputException where it is empty or too long. */
    fun promptIds(text: String, options: Text2TextOptions = Text2TextOptions()): IntArray {
        val source = framing.tokens(text, options.sourceLanguage, options.targetLanguage)
        if (source.size > maxSource) {
            val why = if (maxSource < manifest.encoder!!.maxLength) " in the memory that it may take" else ""
            throw InputException(
                "The text has ${source.size} tokens and this model's encoder takes up to $maxSource$why; split it, for " +
                    "example into sentences.",
            )
        }
        return source
    }

    /** Give memory back that is kept for speed; for an app's `onTrimMemory`. Outputs that run go on. */
    fun trim() {
        slots.trim()
        engine.trim()
    }

    /** Wait for the step that runs, if any, then release everything. Outputs that go on end with an EdgeException. */
    override fun close() {
        slots.close()
        engine.close()
    }

    /** Everything that options and bundle decide about an output, whatever the input. */
    private class Task(
        val prompt: IntArray, // what the decoder begins with
        val options: Text2TextOptions,
        val beams: BeamOptions,
        val ends: Ends,
        val processors: List<Processor>,
    ) {
        /** Rows of a cache in which no output runs out of room; more than the context where beams share positions. */
        val rows get() = prompt.size + beams.beams * beams.maxTokens
    }

    private fun task(options: Text2TextOptions): Task {
        val prompt = framing.start(options.targetLanguage)
        if (prompt.isEmpty()) throw BundleException("${manifest.name} says no token that its decoder begins with; export it again.")
        val wanted = options.maxTokens
            ?: defaults.maxLength?.let { maxOf(1, it - prompt.size) }
            ?: DEFAULT_TOKENS
        val room = engine.context - prompt.size + 1 // the last token is never run
        val limit = minOf(wanted, room)
        val beams = options.beamOptions(defaults, limit)
        plan.checkBeams(beams.beams, memory)
        val settings = RuleSettings(
            options.sampling, defaults, eos, prompt.size, prompt.size + limit, options.noRepeatNgram, options.minTokens,
        )
        return Task(prompt, options, beams, Ends(options.stop, eos, wanted, room), makeProcessors(settings))
    }

    private fun search(cache: KvCache, task: Task, source: IntArray, goOn: () -> Unit): BeamSearch {
        val forced = task.prompt.size - 1 // transformers generates all but the first by force, and counts them
        return BeamSearch(engine, cache, task.prompt, task.beams, eos, task.processors, forced, goOn, source)
    }

    private fun loop(cache: KvCache, task: Task, source: IntArray, goOn: () -> Unit): DecodeLoop {
        val sampler = Sampler(task.options.sampling, task.prompt, manifest.dims.vocabSize, task.processors, source)
        return DecodeLoop(engine, cache, task.prompt, sampler, goOn)
    }

    /** The one output of a search that has none beside it. */
    private fun alone(tokens: Iterator<Int>, ends: Ends): Candidate {
        val said = ArrayList<Int>()
        var finish: FinishReason? = null
        while (finish == null) {
            said += tokens.next()
            finish = ends.reached(said.last(), said.size)
        }
        return Candidate(shown(said.toIntArray(), ends.stop), said, Double.NaN, Double.NaN, finish)
    }

    /** A whole text up to the first stop string in it. */
    private fun shown(tokens: IntArray, stop: List<String>): String {
        val text = loaded.tokenizer.decode(tokens)
        return text.substring(0, stop.map { text.indexOf(it) }.filter { it >= 0 }.minOrNull() ?: text.length)
    }

    companion object {
        private const val DEFAULT_TOKENS = 512 // of an output where neither the caller nor the bundle sets a limit

        /**
         * Open a bundle: check its files, plan its memory, load it.
         *
         * @throws BundleException it is damaged, too new, or no model from text to text.
         * @throws InputException an option is out of its range, or it does not fit into the memory.
         */
        fun open(
            path: File, options: EdgeOptions = EdgeOptions(), dispatcher: CoroutineDispatcher = Dispatchers.Default,
        ): EdgeText2Text {
            val loaded = Loaded.open(path, options) {
                when {
                    it.kind == "decoder" -> "is a decoder, not a model from text to text; open it with EdgeModel."
                    it.text == null -> "transcribes sound; it is not a model from text to text."
                    else -> null
                }
            }
            return EdgeText2Text(loaded, options.memory, dispatcher)
        }
    }
}
