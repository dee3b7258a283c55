package dev.edgelm.memory

import dev.edgelm.EdgeOptions
import dev.edgelm.InputException
import dev.edgelm.Kv
import dev.edgelm.bundle.EncoderDims
import dev.edgelm.bundle.Manifest
import dev.edgelm.engine.Engine
import dev.edgelm.engine.FLOAT

// The constants are those of Python's `edge.runtime.memory.footprint`, which says what they count and how they were
// measured.
private const val CHUNK = 64L // tokens of the decoder's largest step
private const val CROSS_SCORES = 4L
private const val SOUND_ATTENTION = 8L
private const val SOUND_FEED_FORWARD = 3L
private const val SOUND_GAPS = 1.75
private const val WINDOWS = 4L
private const val LEFT = 2L shl 20

/**
 * What a speech bundle takes outside the Java heap. There is nothing to give up: a window has its length, and its text
 * the model's context.
 *
 * @throws InputException the bundle cannot have what was asked for, or it does not fit.
 */
internal fun speechPlan(manifest: Manifest, options: EdgeOptions): Plan {
    if (options.context != null && options.context != manifest.context) {
        throw InputException("${manifest.name} transcribes sound, a window at a time; leave out the context.")
    }
    if (options.kv == Kv.INT8) {
        throw InputException("${manifest.name} has no graph over keys in int8; leave the choice out.")
    }
    val beams = options.beams ?: 1 // transcriptions are greedy, whatever the checkpoint's settings say
    if (beams < 1) throw InputException("The number of beams must be 1 or more, not $beams.")
    val plan = Plan(manifest.context, source = 0, beams, int8 = false, prefill = false, kinds(manifest, beams))
    if (options.memory == null || plan.bytes <= options.memory) return plan
    throw InputException(
        "${manifest.name} needs ${Plan.megabytes(plan.bytes)} MB, and ${options.memory / 1_000_000} MB are allowed; free " +
            "memory, or take a smaller model.",
    )
}

private fun kinds(manifest: Manifest, beams: Int): Map<String, Long> {
    val dims = manifest.dims
    val encoder = manifest.encoder!!
    val rows = encoder.maxLength.toLong()
    val own = EncodingPlan(manifest, encoder.maxLength)
    val cached = manifest.context + (beams - 1L) * (manifest.context / 2) // tokens: beams share the prompt, half of them
    val graphs = listOf(Engine.DECODER, "encoder", "frontend")
    return linkedMapOf(
        "weights" to Plan.weights(manifest) + own.precise,
        "graph" to graphs.sumOf { Plan.SESSION + Plan.GRAPH * Plan.graphSize(manifest, it) },
        "tables of positions" to own.tables(manifest.context),
        "keys and values" to (cached + 1) * manifest.kv.bytesPerToken(FLOAT) + own.cross,
        "activations" to stepping(manifest, rows, cached) + encoding(manifest, encoder, rows),
        "logits" to (2L * beams + Plan.SAMPLING) * dims.vocabSize * FLOAT,
    )
}

/** Bytes of the decoder's largest step. */
private fun stepping(manifest: Manifest, rows: Long, cached: Long): Long {
    val dims = manifest.dims
    val feedForward = Plan.width(manifest, "feed_forward", dims.numLayers, dims.hiddenSize)
    val attention = (dims.numHeads + 2L * dims.numKvHeads) * dims.headDim
    val floats = 7 * feedForward / 2 + 2 * attention + CROSS_SCORES * dims.numHeads * rows + 2 * cached
    return maxOf(0, minOf(CHUNK, manifest.context.toLong()) * floats * FLOAT - LEFT)
}

/** Bytes of the encoder for a window, with the host's copies of its samples. */
private fun encoding(manifest: Manifest, encoder: EncoderDims, rows: Long): Long {
    val feedForward = Plan.width(manifest, "encoder.feed_forward", encoder.numLayers, encoder.hiddenSize)
    val parts = manifest.graph("encoder")!!.parts
    val widest = maxOf(
        SOUND_ATTENTION * encoder.hiddenSize,
        encoder.hiddenSize + SOUND_FEED_FORWARD * feedForward / parts,
    )
    return FLOAT * ((rows * widest * SOUND_GAPS).toLong() + WINDOWS * manifest.speech!!.windowSamples)
}
