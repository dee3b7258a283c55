package dev.edgelm.decode

import dev.edgelm.EdgeException
import dev.edgelm.InputException
import java.nio.FloatBuffer
import kotlin.math.exp

/**
 * How the next token is chosen. The default is greedy: the same prompt gives the same answer.
 *
 * @property temperature 0 takes the likeliest token; above 0 logits are divided by it before a token is drawn.
 * @property topK draw from the k likeliest tokens; 0 for all.
 * @property topP draw from the smallest set of likeliest tokens whose probabilities reach it; 1 for all.
 * @property minP leave out tokens less likely than this share of the likeliest one; 0 for none.
 * @property repetitionPenalty divides positive and multiplies negative logits of tokens that occurred; 1 for none. Null:
 *   the bundle's, where it has one.
 * @property seed makes draws repeatable, the same as Python's; null draws anew every time.
 * @property circles at temperature 0: whether a text that repeats itself without end is led out of it.
 */
data class SamplingOptions(
    val temperature: Double = 0.0,
    val topK: Int = 0,
    val topP: Double = 1.0,
    val minP: Double = 0.0,
    val repetitionPenalty: Double? = null,
    val seed: Long? = null,
    val circles: Circling = Circling.AVOID,
) {
    init {
        check("temperature", temperature, "0 or more", temperature >= 0 && temperature.isFinite())
        check("top-k", topK, "0 or more (0: all tokens)", topK >= 0)
        check("top-p", topP, "above 0 and at most 1", topP > 0 && topP <= 1)
        check("min-p", minP, "between 0 and 1", minP in 0.0..1.0)
        val penalty = repetitionPenalty ?: 1.0
        check("repetition penalty", penalty, "above 0 (1: no penalty)", penalty > 0 && penalty.isFinite())
        check("seed", seed ?: 0, "0 or more", (seed ?: 0) >= 0)
        if (temperature == 0.0 && (topK != 0 || topP != 1.0 || minP != 0.0)) {
            throw InputException(
                "The top-k, top-p and min-p say which tokens are drawn from, and at temperature 0 none is drawn; set a " +
                    "temperature above 0, or leave them out.",
            )
        }
    }

    private fun check(name: String, value: Any, wanted: String, valid: Boolean) {
        if (!valid) throw InputException("The $name must be $wanted, not $value.")
    }
}

/** What becomes of a greedy text that repeats itself without end: see [Circles]. */
enum class Circling { AVOID, ALLOW }

/**
 * Makes the next token of logits [V]. One for each answer: its [processors] go by what was said after [prompt]. A text may
 * repeat what repeats in [source].
 */
internal class Sampler(
    private val options: SamplingOptions,
    prompt: IntArray,
    vocab: Int,
    private val processors: List<Processor> = penalty(options),
    source: IntArray = prompt,
) {
    /** Whether logits are needed at all: else the likeliest token is chosen inside the graph, if it can be. */
    val needsLogits: Boolean = options.temperature > 0 || processors.isNotEmpty()

    private val circles = if (options.temperature == 0.0 && options.circles == Circling.AVOID) Circles(source) else null

    /** Whether the next choice may need logits where others do not. */
    val unsure: Boolean get() = circles?.losses?.isNotEmpty() ?: false

    private val random by lazy(LazyThreadSafetyMode.NONE) {
        Pcg64(options.seed ?: java.security.SecureRandom().nextLong().ushr(1))
    }
    private val logits = FloatArray(vocab)
    private val weights = FloatArray(if (options.temperature > 0) vocab else 0)
    private val scratch = FloatArray(if (options.temperature > 0) vocab else 0)
    private val candidates = IntArray(if (options.temperature > 0) vocab else 0)
    private var text = if (processors.isEmpty()) IntArray(0) else prompt.copyOf()
    private var length = text.size

    /** The next token, of the logits [V] that stand in [row] of [given]. */
    fun next(given: FloatBuffer, row: Int = 0): Int {
        given.position(row * logits.size)
        given.get(logits)
        given.position(0)
        for (processor in processors) processor.process(text, length, logits)
        val token = if (options.temperature == 0.0) taken() else draw()
        if (processors.isNotEmpty()) {
            if (length == text.size) text = text.copyOf(2 * length + 16)
            text[length++] = token
        }
        return token
    }

    /** Whether the next token is the [likeliest], of whose logit nothing is lost: it follows the text then. */
    fun accepts(likeliest: Int): Boolean {
        if (circles == null) return true
        if (likeliest in circles.losses) return false
        circles.push(likeliest)
        return true
    }

    /** The likeliest token, or the next best way out of a circle. */
    private fun taken(): Int {
        val best = likeliest(logits)
        if (circles == null) return best
        if (best !in circles.losses) return best.also(circles::push)
        for ((token, loss) in circles.losses) logits[token] -= loss
        return likeliest(logits).also(circles::push)
    }

    private fun draw(): Int {
        var size = logits.size
        val most = logits[likeliest(logits)]
        if (options.topK in 1 until size) {
            val least = largest(logits, size, options.topK)
            size = 0
            for (token in logits.indices) if (logits[token] >= least) candidates[size++] = token
        } else {
            for (token in logits.indices) candidates[token] = token
        }
        // Unnormalised probabilities, the largest of which is 1.
        val temperature = maxOf(options.temperature.toFloat(), java.lang.Float.MIN_NORMAL)
        for (i in 0 until size) weights[i] = exp(((logits[candidates[i]] - most) / temperature).toDouble()).toFloat()
        var least = options.minP.toFloat()
        if (options.topP < 1) least = maxOf(least, nucleus(size))
        if (least > 0) {
            var kept = 0
            for (i in 0 until size) {
                if (weights[i] >= least) {
                    weights[kept] = weights[i]
                    candidates[kept++] = candidates[i]
                }
            }
            size = kept
        }
        return candidates[drawn(size, random.nextDouble())]
    }

    /** The smallest weight in the smallest set of largest weights that holds `topP` of their sum. */
    private fun nucleus(size: Int): Float {
        var sum = 0.0
        for (i in 0 until size) sum += weights[i]
        val wanted = options.topP * sum
        var count = minOf(NUCLEUS, size)
        while (true) { // sorts the largest only; a vocabulary's nucleus is rarely more than that
            val least = largest(weights, size, count)
            var found = 0
            for (i in 0 until size) if (weights[i] > least) scratch[found++] = weights[i]
            while (found < count) scratch[found++] = least
            scratch.sort(0, count)
            var reached = 0.0
            for (i in count - 1 downTo 0) {
                reached += scratch[i]
                if (reached >= wanted) return scratch[i]
            }
            if (count == size) return scratch[0]
            count = minOf(8 * count, size)
        }
    }

    /** The [k]-th largest of the first [size] values: a selection, not a sort. */
    private fun largest(values: FloatArray, size: Int, k: Int): Float {
        System.arraycopy(values, 0, scratch, 0, size)
        var low = 0
        var high = size - 1
        val wanted = size - k
        while (low < high) {
            val pivot = scratch[(low + high) ushr 1]
            var i = low
            var j = high
            while (i <= j) {
                while (scratch[i] < pivot) i++
                while (scratch[j] > pivot) j--
                if (i <= j) {
                    val moved = scratch[i]
                    scratch[i++] = scratch[j]
                    scratch[j--] = moved
                }
            }
            if (wanted <= j) high = j else if (wanted >= i) low = i else break
        }
        return scratch[wanted]
    }

    /** An index with a probability proportional to its weight, from a number in [0, 1). */
    private fun drawn(size: Int, uniform: Double): Int {
        var total = 0.0
        for (i in 0 until size) total += weights[i]
        val point = uniform * total
        var reached = 0.0
        for (i in 0 until size) {
            reached += weights[i]
            if (reached > point) return i
        }
        return size - 1
    }

    private companion object {
        const val NUCLEUS = 256

        /** What a decoder's answer is shaped by. */
        fun penalty(options: SamplingOptions): List<Processor> =
            listOfNotNull(options.repetitionPenalty?.takeIf { it != 1.0 }?.let(::RepetitionPenalty))
    }
}

/** The largest of some values; the first of equals. EdgeException where one is no number, or the largest has no end. */
internal fun likeliest(values: FloatArray): Int {
    var best = 0
    var most = Float.NEGATIVE_INFINITY
    for (i in values.indices) {
        val value = values[i]
        if (value <= most) continue // which NaN is not
        if (!(value < Float.POSITIVE_INFINITY)) throw notNumbers()
        best = i
        most = value
    }
    return best
}

internal fun notNumbers() = EdgeException("The model computes logits that are not numbers, so it cannot answer; export it again.")
