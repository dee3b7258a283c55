package dev.edgelm.memory

import dev.edgelm.EdgeOptions
import dev.edgelm.InputException
import dev.edgelm.Kv
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.TensorGroup
import dev.edgelm.engine.Engine
import dev.edgelm.engine.FLOAT
import dev.edgelm.engine.PREFILL_CHUNK

/**
 * What a model takes outside the Java heap, in bytes by kind, computed from its manifest before anything is loaded, for
 * one answer or chat at a time. The constants are those of Python's `edge.runtime.memory.footprint`, where they were
 * measured.
 *
 * @property context tokens of prompt and answer.
 * @property int8 whether keys and values are kept in int8.
 * @property prefill whether long prompts are read in the int8 prefill graph.
 */
class Plan internal constructor(
    val context: Int,
    val int8: Boolean,
    val prefill: Boolean,
    val kinds: Map<String, Long>,
) {
    /** Bytes of all kinds. */
    val bytes: Long get() = kinds.values.sum()

    companion object {
        private const val MIB = 1L shl 20
        internal const val SESSION = 3 * MIB / 4
        internal const val GRAPH = 24
        private const val BRANCHED = 32 // of a graph with branches
        private const val SMALLEST = 128 // tokens: a question and a short answer
        private const val GOAL = 1024 // tokens, for which the prefill graph and float keys are given up
        private const val UNPACKED = 5 // copies of a layer's keys, where they are kept in int8

        /**
         * The plan that keeps most: float keys and the prefill graph first.
         *
         * @throws InputException the bundle cannot have what was asked for, or it does not fit.
         */
        internal fun make(manifest: Manifest, options: EdgeOptions, default: Int): Plan {
            val hasInt8 = manifest.graph(Engine.KV8) != null
            if (options.kv == Kv.INT8 && !hasInt8) {
                throw InputException("${manifest.name} has no graph over keys in int8; export the model again.")
            }
            val prefills = manifest.prefill?.known == true
            val choices = buildList {
                if (options.kv != Kv.INT8) {
                    if (prefills) add(false to true)
                    add(false to false)
                }
                if (hasInt8 && options.kv != Kv.FLOAT32) add(true to false)
            }
            val most = options.context ?: default
            val plans = choices.map { (int8, prefill) ->
                val context = if (options.memory == null) most else fitting(manifest, options.memory, most, int8, prefill)
                of(manifest, context, int8, prefill)
            }
            val wanted = options.context ?: minOf(GOAL, most)
            val found = plans.firstOrNull { it.context >= wanted } ?: plans.maxBy { it.context }
            val least = options.context ?: minOf(SMALLEST, most)
            if (found.context >= least) return found
            val needed = choices.minOf { (int8, prefill) -> of(manifest, least, int8, prefill).bytes }
            throw InputException(
                "${manifest.name} needs ${megabytes(needed)} MB for $least tokens, and ${options.memory!! / 1_000_000} MB " +
                    "are allowed; free memory, ask for fewer tokens, or take a smaller model.",
            )
        }

        internal fun megabytes(bytes: Long) = (bytes + 999_999) / 1_000_000

        /** The largest context up to [most] that fits; 0 where none does. */
        private fun fitting(manifest: Manifest, memory: Long, most: Int, int8: Boolean, prefill: Boolean): Int {
            var low = 0
            var high = most
            while (low < high) {
                val middle = (low + high + 1) / 2
                if (of(manifest, middle, int8, prefill).bytes <= memory) low = middle else high = middle - 1
            }
            return low
        }

        private fun of(manifest: Manifest, context: Int, int8: Boolean, prefill: Boolean): Plan {
            val dims = manifest.dims
            val groups = manifest.groups.associateBy { it.name }
            val head = groups["head"] ?: groups["embedding"]
            val read = manifest.groups.filter { it.name !in setOf("embedding", "head", "norm") } + listOfNotNull(head)
            val role = if (int8) Engine.KV8 else Engine.DECODER
            val tables = manifest.kv.layers.map { it.window }.distinct().size
            val kinds = linkedMapOf(
                "weights" to read.sumOf(::packed),
                "graph" to SESSION + (if (int8) BRANCHED else GRAPH) * graphSize(manifest, role),
                "tables of positions" to context.toLong() * dims.headDim * FLOAT * tables,
                "keys and values" to (context + 1) * manifest.kv.bytesPerToken(if (int8) 1 else FLOAT),
                "activations" to activations(manifest, context, int8, prefill),
                "logits" to 5L * dims.vocabSize * FLOAT,
            )
            if (prefill) {
                val own = manifest.prefill!!.groups + listOfNotNull(head)
                kinds["prefill graph"] = SESSION + GRAPH * graphSize(manifest, Engine.PREFILL) + own.sumOf(::packed) +
                    2L * dims.hiddenSize * dims.hiddenSize * FLOAT
            }
            return Plan(context, int8, prefill, kinds)
        }

        internal fun graphSize(manifest: Manifest, role: String) = manifest.graph(role)?.let { manifest.size(it.path) } ?: 0

        /** Bytes of a group's matrices as the kernels keep them. */
        internal fun packed(group: TensorGroup): Long = when {
            group.blockSize == 0 -> group.parameters * FLOAT
            group.method.startsWith("rows") -> group.bytes
            else -> group.bytes + group.parameters / group.blockSize * FLOAT // with the sums of blocks
        }

        private fun activations(manifest: Manifest, context: Int, int8: Boolean, prefill: Boolean): Long {
            val dims = manifest.dims
            val tokens = minOf(if (prefill) 2 * PREFILL_CHUNK else PREFILL_CHUNK, context)
            val gated = manifest.groups.firstOrNull { it.name == "feed_forward" }?.let {
                it.parameters / (dims.numLayers.toLong() * dims.hiddenSize) - dims.intermediateSize
            } ?: 0
            val feedForward = maxOf(dims.intermediateSize.toLong(), gated)
            val attention = (dims.numHeads + 2L * dims.numKvHeads) * dims.headDim
            val row = manifest.kv.layers.maxOf { it.heads * it.headDim }
            val unpacked = if (int8) UNPACKED.toLong() * context * row else 0
            return (tokens * (7 * feedForward / 2 + 2 * attention) + unpacked) * FLOAT
        }
    }
}
