package dev.edgelm.skip

import dev.edgelm.bundle.Manifest

/**
 * A policy that reads the prompt's residual stream, which runs through everything, and then decides for the whole answer:
 * it keeps a score for every token and candidate, and leaves out what [choose] makes of their means over the prompt.
 *
 * Scores of tokens stay as long as their rows do, so that a chat's next turn, which runs only what is new, decides by the
 * whole conversation.
 *
 * [candidates]: the units that may be left out.
 */
internal abstract class PromptPolicy(
    private val manifest: Manifest, private val candidates: List<Int>, override val watched: List<Int>,
) : SkipPolicy() {
    private val everything = routeWithout(emptyList(), manifest)
    private val scores = Array(candidates.size) { FloatArray(0) } // of each token of the cache
    private var chosen: Route? = null

    /** The place of a unit among the candidates; -1 where it is none. */
    protected fun place(unit: Int): Int = candidates.indexOf(unit)

    /** The candidate at [place] has this [score] for the token at [row]. */
    protected fun note(place: Int, row: Int, score: Double) {
        if (row >= scores[place].size) scores[place] = scores[place].copyOf(2 * row + 1)
        scores[place][row] = score.toFloat()
    }

    /** Which candidates to leave out, by their places and the mean score of each. */
    protected abstract fun choose(means: DoubleArray): List<Int>

    override fun maxExactStep(cache: SegmentedCache): Int =
        if (cache.length >= cache.prompt) Int.MAX_VALUE else cache.prompt - cache.length

    override fun route(cache: SegmentedCache): Route {
        if (cache.length < cache.prompt || cache.prompt == 0) {
            chosen = null
            return everything
        }
        return chosen ?: leavingOut(cache.prompt).also { chosen = it }
    }

    private fun leavingOut(prompt: Int): Route {
        val means = DoubleArray(candidates.size) { place -> (0 until prompt).sumOf { scores[place][it].toDouble() } / prompt }
        return routeWithout(choose(means).map(candidates::get), manifest)
    }
}

/** The places of the [count] lowest of these values, the first of equals. */
internal fun lowest(values: DoubleArray, count: Int): List<Int> = values.indices.sortedBy { values[it] }.take(count)
