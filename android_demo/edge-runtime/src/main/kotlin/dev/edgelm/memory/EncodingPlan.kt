package dev.edgelm.memory

import dev.edgelm.bundle.Manifest
import dev.edgelm.engine.FLOAT

/** What the encoder of a text of [source] tokens takes, in bytes: a part of a [Plan], with Python's constants. */
internal class EncodingPlan(private val manifest: Manifest, val source: Int) {
    private val dims = manifest.encoder!!
    private val layout = manifest.cross!!
    private val graph = manifest.graph("encoder")!!
    private val groups = manifest.groups.associateBy { it.name }

    /** Weights that first layers of the encoder read in another precision, which are packed a second time. */
    val precise: Long
        get() {
            val cross = groups["encoder.cross_attention"]
            if (graph.preciseLayers == 0 || cross == null) return 0
            val layers = Plan.packed(groups.getValue("encoder.attention")) + Plan.packed(groups.getValue("encoder.feed_forward"))
            return Plan.packed(cross) + layers * graph.preciseLayers / dims.numLayers
        }

    /** Keys and values for the decoder. */
    val cross: Long get() = source * layout.bytesPerToken(FLOAT)

    /** Rows of the hidden size for each position, of the encoder and of a decoder of [context] tokens. */
    fun tables(context: Int): Long =
        (context.toLong() * manifest.dims.hiddenSize + source.toLong() * dims.hiddenSize) * FLOAT

    val activations: Long
        get() {
            val inner = Plan.width(manifest, "encoder.feed_forward", dims.numLayers, dims.hiddenSize)
            val gated = inner > manifest.dims.intermediateSize
            val feedForward = source * (if (gated) GATED else PLAIN) * inner
            val attending = source.toLong() * ATTENTION * 3 * dims.numHeads * layout.layers[0].headDim
            val scores = (source.toDouble() * source * SCORES * dims.numHeads).toLong()
            val block = if (graph.scores) maxOf(feedForward, attending + scores) else feedForward + attending
            val floats = block + source.toLong() * RESIDUAL * dims.hiddenSize
            return CROSS * cross / layout.layers.size + floats * FLOAT
        }

    private companion object {
        const val PLAIN = 2
        const val GATED = 3 // both halves of the first product
        const val ATTENTION = 2
        const val RESIDUAL = 1
        const val CROSS = 2 // copies of one decoder layer's keys and values
        const val SCORES = 3.15 // copies [heads, T, T], where attention keeps them, and of their bias
    }
}
