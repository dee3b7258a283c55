package dev.edgelm.decode

import dev.edgelm.EarlyStopping
import dev.edgelm.FinishReason
import dev.edgelm.InputException
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import java.nio.FloatBuffer
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow

/** How beams are searched: see [dev.edgelm.Text2TextOptions]. */
internal class BeamOptions(
    val beams: Int,
    val lengthPenalty: Double,
    val earlyStopping: EarlyStopping,
    val nBest: Int,
    val maxTokens: Int,
) {
    init {
        if (nBest > beams) throw InputException("$beams beams cannot give $nBest texts; ask for as many beams.")
    }
}

/** A text that a search found: its tokens after the prompt, with the end token. */
internal class Hypothesis(val tokens: IntArray, val score: Double, val logProbability: Double, val finish: FinishReason)

/**
 * Beam search as a tree in one KV cache: the beams are the rows of one step, and what they share is kept once. The rules
 * are those of transformers 5 (`GenerationMixin._beam_search`), as in Python's `edge.runtime.decode.beam`.
 *
 * [prompt]: what the decoder begins with, of which the last [forced] tokens count towards a text's length. [goOn] is
 * called before every step, and throws where the search is to end.
 */
internal class BeamSearch(
    private val engine: Engine,
    private val cache: KvCache,
    private val prompt: IntArray,
    private val options: BeamOptions,
    private val eos: Set<Int>,
    private val processors: List<Processor>,
    private val forced: Int,
    private val goOn: () -> Unit,
) {
    /** The best texts, the best first; there before the last tokens come. */
    var found: List<Hypothesis> = emptyList()
        private set

    /**
     * The tokens of the best text, each as soon as it is certain because all possible texts go on with it, and the others
     * in the end.
     */
    fun tokens(): Iterator<Int> = iterator {
        if (!engine.takesTrees) {
            throw InputException("This bundle's decoder takes one text at a time, so that no beams can be searched with it.")
        }
        val scores = Array(options.beams) { FloatArray(engine.bundle.manifest.dims.vocabSize) }
        val beams = Beams(prompt, options, eos, forced)
        var logits = engine.prefill(cache, prompt, cache.length, goOn)
        val branches = Branches(engine, cache, options.beams)
        var certain = 0
        while (true) {
            read(logits, scores, beams)
            beams.extend(scores)
            if (beams.done) break
            val new = beams.certain(certain)
            certain += new.size
            for (token in new) yield(token)
            goOn()
            val made = branches.step(beams.parents, beams.tokens)
            if (made == null) {
                beams.cut(FinishReason.CONTEXT)
                break
            }
            logits = made
        }
        found = beams.ended.take(options.nBest)
        val best = found[0].tokens
        for (i in certain until best.size) yield(best[i])
    }

    /** The log probabilities of what may follow each text, as the processors change them. */
    private fun read(logits: FloatBuffer, scores: Array<FloatArray>, beams: Beams) {
        logits.position(0)
        for ((row, text) in beams.texts.withIndex()) {
            logits.get(scores[row])
            logSoftmax(scores[row])
            for (processor in processors) processor.process(text, text.size, scores[row])
        }
        logits.position(0)
    }
}

/** Turn logits into log probabilities in place. */
internal fun logSoftmax(logits: FloatArray) {
    var most = Float.NEGATIVE_INFINITY
    for (logit in logits) if (logit > most) most = logit
    var sum = 0.0
    for (i in logits.indices) {
        logits[i] -= most
        sum += exp(logits[i].toDouble())
    }
    val log = ln(sum).toFloat()
    for (i in logits.indices) logits[i] -= log
}

/**
 * The beams: their texts so far, prompt included, and the best of those that ended. [parents] and [tokens] say which rows
 * of the last step are continued with which tokens.
 */
private class Beams(prompt: IntArray, private val options: BeamOptions, private val eos: Set<Int>, forced: Int) {
    private val candidates = Candidates(maxOf(2, 1 + eos.size) * options.beams) // so that enough of them do not end
    private val start = prompt.size
    private val uncounted = prompt.size - forced
    private val limit = prompt.size + options.maxTokens
    private var length = prompt.size
    private var values = floatArrayOf(0f) // log probabilities of the texts
    var texts = listOf(prompt)
        private set
    var parents = IntArray(0)
        private set
    var tokens = IntArray(0)
        private set
    val ended = ArrayList<Hypothesis>() // the best first, at most as many as there are beams
    var done = false
        private set

    /** Choose what follows each text by the scores of all tokens. */
    fun extend(scores: Array<FloatArray>) {
        candidates.clear()
        for (row in texts.indices) candidates.offer(row, values[row], scores[row])
        if (candidates.size == 0) { // every token is forbidden
            cut(FinishReason.LENGTH)
            return
        }
        val last = length + 1 == limit
        val chosen = ArrayList<Int>(options.beams)
        for (rank in 0 until candidates.size) {
            val ends = candidates.tokens[rank] in eos
            if (!ends && !last) {
                if (chosen.size < options.beams) chosen += rank
            } else if (rank < options.beams) {
                val text = continued(rank)
                val tokens = text.copyOfRange(start, text.size)
                add(tokens, candidates.values[rank], if (ends) FinishReason.STOP else FinishReason.LENGTH)
            }
        }
        texts = chosen.map(::continued)
        tokens = IntArray(chosen.size) { candidates.tokens[chosen[it]] }
        parents = IntArray(chosen.size) { candidates.rows[chosen[it]] }
        values = FloatArray(chosen.size) { candidates.values[chosen[it]] }
        length++
        done = chosen.isEmpty() || cannotImprove(values[0])
    }

    private fun continued(rank: Int): IntArray = texts[candidates.rows[rank]] + candidates.tokens[rank]

    private fun cannotImprove(best: Float): Boolean {
        if (ended.size < options.beams) return false
        if (options.earlyStopping == EarlyStopping.TRUE) return true
        val far = options.earlyStopping == EarlyStopping.NEVER && options.lengthPenalty > 0
        return score(best, if (far) limit else length) <= ended.last().score
    }

    /** Let the texts that go on end where they are. */
    fun cut(reason: FinishReason) {
        for ((text, value) in texts.zip(values.asList())) add(text.copyOfRange(start, text.size), value, reason)
        done = true
    }

    /** What all texts that may still be the best begin with, [known] tokens after the prompt. */
    fun certain(known: Int): IntArray {
        val from = start + known
        var count = length - from
        for (text in texts) count = alike(texts[0], from, text, from, count)
        ended.firstOrNull()?.let { best ->
            count = alike(texts[0], from, best.tokens, known, minOf(count, best.tokens.size - known))
        }
        return texts[0].copyOfRange(from, from + count)
    }

    private fun add(tokens: IntArray, value: Float, reason: FinishReason) {
        ended += Hypothesis(tokens, score(value, start + maxOf(1, tokens.size)), value.toDouble(), reason)
        ended.sortByDescending { it.score }
        if (ended.size > options.beams) ended.removeAt(ended.size - 1)
    }

    private fun score(value: Float, length: Int) = value / (length - uncounted).toDouble().pow(options.lengthPenalty)

    private fun alike(a: IntArray, aStart: Int, b: IntArray, bStart: Int, most: Int): Int {
        for (i in 0 until most) if (a[aStart + i] != b[bStart + i]) return i
        return most
    }
}

/** The [most] largest of the scores that are offered, above -inf, in order; of equals the first. */
private class Candidates(private val most: Int) {
    val values = FloatArray(most)
    val rows = IntArray(most)
    val tokens = IntArray(most)
    var size = 0
        private set

    fun clear() {
        size = 0
    }

    /** Offer a row's [scores], each with [base] added. */
    fun offer(row: Int, base: Float, scores: FloatArray) {
        var least = least()
        for (token in scores.indices) {
            val value = scores[token] + base
            if (value > least) {
                insert(value, row, token)
                least = least()
            }
        }
    }

    private fun least() = if (size < most) Float.NEGATIVE_INFINITY else values[most - 1]

    private fun insert(value: Float, row: Int, token: Int) {
        if (size < most) size++
        var at = size - 1
        while (at > 0 && values[at - 1] < value) {
            values[at] = values[at - 1]
            rows[at] = rows[at - 1]
            tokens[at] = tokens[at - 1]
            at--
        }
        values[at] = value
        rows[at] = row
        tokens[at] = token
    }
}
