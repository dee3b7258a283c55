package dev.edgelm.decode

import dev.edgelm.EarlyStopping
import dev.edgelm.FinishReason
import dev.edgelm.InputException
import dev.edgelm.decode.rules.Circles
import dev.edgelm.decode.rules.Processor
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import java.nio.FloatBuffer
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow

/** How beams are searched: see [dev.edgelm.Text2TextOptions]. */
internal class BeamOptions(
    val beams: Int,
    val maxTokens: Int,
    val groups: Int = 1,
    val diversity: Double = 0.0,
    val lengthPenalty: Double = 1.0,
    val earlyStopping: EarlyStopping = EarlyStopping.FALSE,
    val nBest: Int = 1,
    val circles: Circling = Circling.ALLOW,
) {
    init {
        if (nBest > beams) throw InputException("$beams beams cannot give $nBest texts; ask for as many beams.")
        if (beams % groups != 0) throw InputException("$beams beams cannot be split into $groups groups of one size.")
        if (groups > 1 && diversity == 0.0) {
            throw InputException("$groups beam groups need a diversity above 0, or they would all find the same.")
        }
        if (groups == 1 && diversity > 0) {
            throw InputException("A diversity needs beam groups, which it keeps different; give 2 or more.")
        }
    }
}

/** A text that a search found: its tokens after the prompt, with the end token. */
internal class Hypothesis(val tokens: IntArray, val score: Double, val logProbability: Double, val finish: FinishReason)

/**
 * Beam search as a tree in one KV cache: the beams are the rows of one step, and what they share is kept once. The rules
 * are those of transformers 5 (`GenerationMixin._beam_search`), as in Python's `edge.runtime.decode.beam`. Groups of beams
 * (Vijayakumar et al. 2016) follow transformers 4, which differs in two rules: see [Group].
 *
 * [prompt]: what the decoder begins with, after what the cache holds, of which the last [forced] tokens count towards a text's length. [goOn] is
 * called before every step, and throws where the search is to end. A text may repeat what repeats in [source].
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
    private val source: IntArray = IntArray(0),
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
        val scores = Array(options.beams / options.groups) { FloatArray(engine.bundle.manifest.dims.vocabSize) }
        val groups = List(options.groups) { Group(prompt, options, eos, forced, source) }
        var logits = engine.prefill(cache, prompt, 0, goOn)
        val branches = Branches(engine, cache, options.beams)
        var certain = 0
        while (true) {
            extend(groups, logits, scores)
            val growing = groups.filter { !it.done }
            if (growing.isEmpty()) break
            val new = certain(groups, certain)
            certain += new.size
            for (token in new) yield(token)
            goOn()
            val (parents, tokens) = join(growing)
            val made = branches.step(parents, tokens)
            if (made == null) {
                growing.forEach { it.cut(FinishReason.CONTEXT) }
                break
            }
            logits = made
        }
        found = groups.flatMap { it.ended }.sortedByDescending { it.score }.take(options.nBest)
        val best = found[0].tokens
        for (i in certain until best.size) yield(best[i])
    }

    /** Let every group choose by the log probabilities, as processors and earlier groups change them. */
    private fun extend(groups: List<Group>, logits: FloatBuffer, scores: Array<FloatArray>) {
        val taken = ArrayList<Int>() // by earlier groups, at this place
        for (group in groups) {
            if (group.done) continue
            for ((i, text) in group.texts.withIndex()) {
                logits.position(group.leaves[i] * scores[i].size)
                logits.get(scores[i])
                logSoftmax(scores[i])
                for (processor in processors) processor.process(text, text.size, scores[i])
                for (token in taken) scores[i][token] -= options.diversity.toFloat()
            }
            group.extend(scores)
            taken += group.tokens.asList()
        }
        logits.position(0)
    }
}

/** Turn logits into log probabilities in place. */
internal fun logSoftmax(logits: FloatArray) {
    var most = Float.NEGATIVE_INFINITY
    for (logit in logits) {
        if (logit <= most) continue // which NaN is not
        if (!(logit < Float.POSITIVE_INFINITY)) throw notNumbers()
        most = logit
    }
    var sum = 0.0
    for (i in logits.indices) {
        logits[i] -= most
        sum += exp(logits[i].toDouble())
    }
    val log = ln(sum).toFloat()
    for (i in logits.indices) logits[i] -= log
}

/**
 * The beams of one group: their texts so far, prompt included, and the best of those that ended. [leaves] are the rows of
 * the last step that belong to its beams; [parents] and [tokens] say which of those rows are continued with which tokens.
 *
 * Two rules differ between one search and several groups. At the limit of tokens, texts that go on compete with those
 * that end there, or come after them. And what may yet be reached is judged by the best beam that goes on, or by the best
 * candidate, whether it goes on or not.
 */
private class Group(prompt: IntArray, private val options: BeamOptions, private val eos: Set<Int>, forced: Int, source: IntArray) {
    private val grouped = options.groups > 1
    private val width = options.beams / options.groups
    private val candidates = Candidates(maxOf(2, 1 + eos.size) * width) // so that enough of them do not end
    val start = prompt.size
    private val uncounted = prompt.size - forced
    private val limit = prompt.size + options.maxTokens
    private var length = prompt.size
    private var values = floatArrayOf(0f) // log probabilities of the texts
    var texts = listOf(prompt)
        private set
    var leaves = intArrayOf(0)
    var parents = IntArray(0)
        private set
    var tokens = IntArray(0)
        private set
    private var circles = if (options.circles == Circling.AVOID) listOf(Circles(source)) else emptyList() // of the texts
    val ended = ArrayList<Hypothesis>() // the best first, at most as many as the group has beams
    var done = false
        private set

    /** Choose what follows each text by the scores of all tokens. */
    fun extend(scores: Array<FloatArray>) {
        candidates.clear()
        for ((row, each) in circles.withIndex()) for ((token, loss) in each.losses) scores[row][token] -= loss
        for (row in texts.indices) candidates.offer(row, values[row], scores[row])
        if (candidates.size == 0) { // every token is forbidden
            cut(FinishReason.LENGTH)
            return
        }
        val last = length + 1 == limit
        val chosen = ArrayList<Int>(width)
        for (rank in 0 until candidates.size) {
            val ends = candidates.tokens[rank] in eos
            if (!ends && (grouped || !last)) {
                if (chosen.size < width) chosen += rank
            } else if (rank < width) {
                val text = continued(rank)
                val tokens = text.copyOfRange(start, text.size)
                add(tokens, candidates.values[rank], if (ends) FinishReason.STOP else FinishReason.LENGTH)
            }
        }
        texts = chosen.map(::continued)
        if (circles.isNotEmpty()) {
            circles = chosen.map { circles[candidates.rows[it]].copy().apply { push(candidates.tokens[it]) } }
        }
        tokens = IntArray(chosen.size) { candidates.tokens[chosen[it]] }
        parents = IntArray(chosen.size) { leaves[candidates.rows[chosen[it]]] }
        values = FloatArray(chosen.size) { candidates.values[chosen[it]] }
        length++
        done = chosen.isEmpty() || cannotImprove(if (grouped) candidates.values[0] else values[0])
        if (last && !done) cut(FinishReason.LENGTH)
    }

    private fun continued(rank: Int): IntArray = texts[candidates.rows[rank]] + candidates.tokens[rank]

    private fun cannotImprove(best: Float): Boolean {
        if (ended.size < width) return false
        if (options.earlyStopping == EarlyStopping.TRUE) return true
        val far = options.earlyStopping == EarlyStopping.NEVER && options.lengthPenalty > 0
        return score(best, if (far) limit else length) <= ended.last().score
    }

    /** Let the texts that go on end where they are. */
    fun cut(reason: FinishReason) {
        for ((text, value) in texts.zip(values.asList())) add(text.copyOfRange(start, text.size), value, reason)
        done = true
    }

    private fun add(tokens: IntArray, value: Float, reason: FinishReason) {
        ended += Hypothesis(tokens, score(value, start + maxOf(1, tokens.size)), value.toDouble(), reason)
        ended.sortByDescending { it.score }
        if (ended.size > width) ended.removeAt(ended.size - 1)
    }

    private fun score(value: Float, length: Int) = value / (length - uncounted).toDouble().pow(options.lengthPenalty)
}

/** Which rows of the last step are continued with which tokens; groups that found the same text share a row. */
private fun join(groups: List<Group>): Pair<IntArray, IntArray> {
    val rows = LinkedHashMap<Pair<Int, Int>, Int>()
    for (group in groups) {
        group.leaves = IntArray(group.tokens.size) { i ->
            rows.getOrPut(Pair(group.parents[i], group.tokens[i])) { rows.size }
        }
    }
    return Pair(rows.keys.map { it.first }.toIntArray(), rows.keys.map { it.second }.toIntArray())
}

/** What all texts that may still be the best begin with, [known] tokens after the prompt. */
private fun certain(groups: List<Group>, known: Int): IntArray {
    val growing = groups.filter { !it.done }
    val first = growing[0].texts[0]
    val from = growing[0].start + known
    var count = first.size - from
    for (group in growing) for (text in group.texts) count = alike(first, from, text, from, count)
    groups.mapNotNull { it.ended.firstOrNull() }.maxByOrNull { it.score }?.let { best ->
        count = alike(first, from, best.tokens, known, minOf(count, best.tokens.size - known))
    }
    return first.copyOfRange(from, from + count)
}

private fun alike(a: IntArray, aStart: Int, b: IntArray, bStart: Int, most: Int): Int {
    for (i in 0 until most) if (a[aStart + i] != b[bStart + i]) return i
    return most
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
