package dev.edgelm.decode

import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.decode.rules.Circles
import dev.edgelm.decode.rules.Left
import dev.edgelm.decode.rules.Processor
import dev.edgelm.decode.rules.RuleSettings
import dev.edgelm.decode.rules.makeProcessors
import java.nio.FloatBuffer

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
    private val processors: List<Processor> = makeProcessors(RuleSettings(options, begin = prompt.size)),
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
    private val left = Left(options, if (options.temperature > 0) vocab else 0)
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
        left.weigh(logits, logits[likeliest(logits)])
        return left.drawn(random.nextDouble())
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
