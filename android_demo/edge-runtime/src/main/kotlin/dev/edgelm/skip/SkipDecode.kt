package dev.edgelm.skip

import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest

/**
 * SkipDecode: fewer layers the further an answer gets, the same ones for all tokens at a place: [most] for the prompt, then
 * ever fewer, down to [least] after [HORIZON] tokens of the answer, or at the end of the cache where that comes first.
 * First and last layer are counted.
 *
 * Source: Del Corro et al. 2023, SkipDecode: Autoregressive Skip Decoding with Batching and Caching for Efficient LLM
 * Inference (arXiv 2307.02628): a budget that falls linearly, first layers kept as warm-up, lower to middle ones bypassed.
 * The layers of a token are always among those of the tokens before it, so that no layer ever misses keys and values.
 */
internal class SkipDecode(manifest: Manifest, least: Int, most: Int) : SkipPolicy() {
    private val routes: List<Route> // by the levels that are dropped
    private val levels: Int

    init {
        val segments = manifest.segments
        val layers = manifest.dims.numLayers
        val units = skippable(segments)
        val width = segments[units[0][0]].layers.size
        val warm = maxOf(1, least / WARM)
        val bypassed = units.filter { segments[it[0]].layers[0] >= warm } // in the order that they are dropped
        val never = minOf((layers - most) / width, bypassed.size)
        val falling = maxOf(0, minOf((layers - least) / width, bypassed.size) - never)
        levels = minOf(LEVELS, falling)
        routes = List(levels + 1) { level ->
            routeWithout(bypassed.take(never + level * falling / maxOf(1, levels)).flatten(), manifest)
        }
    }

    /** How many levels the token at [position] leaves out, after a prompt of [prompt] tokens. */
    fun dropped(prompt: Int, position: Int, capacity: Int): Int {
        val last = last(prompt, capacity)
        return (position - prompt).coerceIn(0, last) * (levels + 1) / (last + 1)
    }

    override fun route(cache: SegmentedCache): Route = routes[dropped(cache.prompt, cache.length, cache.capacity)]

    override fun maxExactStep(cache: SegmentedCache): Int {
        val last = last(cache.prompt, cache.capacity)
        val following = dropped(cache.prompt, cache.length, cache.capacity) + 1
        val begins = (following * (last + 1) + levels) / (levels + 1) // that level, as a place in the answer
        val end = if (begins <= last) cache.prompt + begins else cache.capacity
        return maxOf(1, end - cache.length)
    }

    /** The place in an answer, counted from 0, at which the fewest layers are reached. */
    private fun last(prompt: Int, capacity: Int) = maxOf(1, minOf(HORIZON, capacity - prompt) - 1)

    companion object {
        private const val HORIZON = 512 // tokens of an answer over which the layers fall from most to least
        private const val WARM = 3 // one of so many of the least layers is a first one; the others are the last ones
        private const val LEVELS = 8 // most steps in which the layers fall
        private val RANGE = Regex("""(\d+)-(\d+)""")

        fun maker(bundle: Bundle, setting: String): () -> SkipPolicy {
            middle(bundle, LAYERS_OR_HALVES, "skipdecode")
            val manifest = bundle.manifest
            val layers = manifest.dims.numLayers
            val (least, most) = RANGE.matchEntire(setting)?.destructured?.toList()?.map { it.toIntOrNull() ?: Int.MAX_VALUE }
                ?: throw InputException("'$setting' is no range of layers; write it like skipdecode:${layers / 2}-$layers.")
            if (least < 2 || least > most || most > layers) {
                throw InputException(
                    "skipdecode:$setting does not go from 2 or more layers up to no more than the $layers of ${manifest.name}.",
                )
            }
            val policy = SkipDecode(manifest, least, most)
            return { policy }
        }
    }
}
