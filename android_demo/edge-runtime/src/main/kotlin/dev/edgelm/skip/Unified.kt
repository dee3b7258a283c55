package dev.edgelm.skip

import dev.edgelm.bundle.Bundle

/**
 * Unified layer skipping: the same layers left out for every token, spread evenly over the decoder.
 *
 * Source: Liu et al. 2024, Accelerating Inference in Large Language Models with a Unified Layer Skipping Strategy
 * (arXiv 2404.06954): a target ratio says how many layers stay, and first, last and evenly spaced ones do.
 */
internal fun unified(bundle: Bundle, setting: String): () -> SkipPolicy {
    middle(bundle, LAYERS_OR_HALVES, "unified")
    val ratio = share(setting, "unified:0.2")
    val manifest = bundle.manifest
    val units = skippable(manifest.segments)
    val width = manifest.segments[units[0][0]].layers.size
    val count = minOf(Math.rint(ratio * manifest.dims.numLayers / width).toInt(), units.size)
    val policy = FixedRoute(routeWithout(spread(count, units.size).flatMap { units[it] }, manifest))
    return { policy }
}

/** [count] of [total] places, as evenly as they go. */
internal fun spread(count: Int, total: Int): List<Int> = List(count) { ((it + 0.5) * total / count).toInt() }
