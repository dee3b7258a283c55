package dev.edgelm.skip

import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import kotlin.math.max
import kotlin.math.sqrt

/**
 * Skipping of feed-forward blocks that hardly turn the residual stream; attention stays whole. [count] blocks are left out,
 * those with the highest mean cosine of what they read and what stands after them, among [candidates] in the middle.
 *
 * Source: Jaiswal et al. 2024, FFN-SkipLLM: A Hidden Gem for Autoregressive Decoding with Adaptive Feed Forward Skipping
 * (arXiv 2404.03865). There each token decides while it runs. Here the prompt's tokens decide for the answer.
 */
internal class FeedForward private constructor(
    manifest: Manifest, candidates: List<Int>, private val count: Int,
) : PromptPolicy(manifest, candidates, watched = candidates.flatMap { listOf(it, it + 1) }.distinct().sorted()) {
    private var read: Stream? = null // what the unit before was about to read

    override fun observe(start: Int, unit: Int, stream: Stream) {
        val before = read
        val place = place(unit - 1)
        if (place >= 0) {
            for (token in 0 until stream.size) note(place, start + token, cosine(before!!, stream, token))
        }
        read = stream
    }

    private fun cosine(a: Stream, b: Stream, token: Int): Double {
        var product = 0.0
        var first = 0.0
        var second = 0.0
        for (i in token * a.hidden until (token + 1) * a.hidden) {
            val x = a.values[i].toDouble()
            val y = b.values[i].toDouble()
            product += x * y
            first += x * x
            second += y * y
        }
        return product / max(sqrt(first) * sqrt(second), TINY)
    }

    override fun choose(means: DoubleArray): List<Int> = lowest(DoubleArray(means.size) { -means[it] }, count)

    companion object {
        private const val CHOICE = 1.5 // candidates for each block that is left out
        private const val TINY = 1.1754943508222875e-38 // the smallest normal float32

        fun maker(bundle: Bundle, setting: String): () -> SkipPolicy {
            val blocks = middle(bundle, FEED_FORWARD, "ffn")
            val ratio = share(setting, "ffn:0.25")
            val count = minOf(Math.rint(ratio * bundle.manifest.dims.numLayers).toInt(), blocks.size)
            // Those in the middle, among which some are chosen.
            val many = minOf(Math.rint(CHOICE * count).toInt(), blocks.size)
            val candidates = blocks.drop((blocks.size - many) / 2).take(many)
            return { FeedForward(bundle.manifest, candidates, count) }
        }
    }
}
