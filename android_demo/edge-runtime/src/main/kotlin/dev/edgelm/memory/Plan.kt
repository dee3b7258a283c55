package dev.edgelm.memory

import dev.edgelm.EdgeOptions
import dev.edgelm.InputException
import dev.edgelm.Kv
import dev.edgelm.Speculate
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.TensorGroup
import dev.edgelm.engine.Engine
import dev.edgelm.engine.FLOAT
import dev.edgelm.engine.KEPT_STEP
import dev.edgelm.engine.PREFILL_CHUNK
import dev.edgelm.engine.arm
import dev.edgelm.skip.SkipPolicy
import dev.edgelm.speculate.Speculation

/**
 * What a model takes outside the Java heap (and draft tables in it), in bytes by kind, computed from its manifest before
 * anything is loaded, for one answer, chat or output at a time. The constants are those of Python's
 * `edge.runtime.memory.footprint`, where they were measured.
 *
 * @property context tokens of prompt and answer.
 * @property source tokens of an encoder's text; 0 where there is no such encoder.
 * @property beams texts that grow side by side.
 * @property int8 whether keys and values are kept in int8.
 * @property prefill whether long prompts are read in the int8 prefill graph.
 * @property width maximum tokens of a step with a draft; 1 where nothing is drafted.
 */
class Plan internal constructor(
    val context: Int,
    val source: Int,
    val beams: Int,
    val int8: Boolean,
    val prefill: Boolean,
    val kinds: Map<String, Long>,
    val width: Int = 1,
) {
    /** Bytes of all kinds. */
    val bytes: Long get() = kinds.values.sum()

    /** InputException where memory was limited, and planned for fewer [wanted] beams. */
    internal fun checkBeams(wanted: Int, memory: Long?) {
        if (memory == null || wanted <= beams) return
        throw InputException(
            "Memory was planned for $beams beams, not for $wanted; name them when the bundle is opened, or take fewer.",
        )
    }

    companion object {
        private const val MIB = 1L shl 20
        internal const val SESSION = 3 * MIB / 4
        internal const val GRAPH = 24
        private const val BRANCHED = 32 // of a graph with branches
        private const val SMALLEST = 128 // tokens: a question and a short answer
        private const val GOAL = 1024 // tokens, for which the prefill graph and float keys are given up
        private const val DEFAULT_CONTEXT = 4096
        private const val UNPACKED = 5 // copies of a layer's keys, where they are kept in int8
        private const val TEXT_START = 4 // tokens that a text decoder begins with: start, language and what is forced
        internal const val SAMPLING = 3 // rows of logits that choosing a token works on
        private const val CROSS_SCORES = 4 // copies of the scores over the encoder's rows
        private const val KV8_STEP = 8 // tokens of a step up to which a graph over keys in int8 attends to bytes
        private val LATER = setOf(Engine.PREFILL, "tree", Engine.KV8, Engine.SKIP) // opened when they pay, or instead, or no longer

        /**
         * The plan that keeps most: float keys and the prefill graph first. Long steps of drafts go before float keys, and
         * drafts altogether before the context. What else is given up, and so the text, does not depend on what drafts.
         *
         * @throws InputException the bundle cannot have what was asked for, or it does not fit.
         */
        internal fun make(manifest: Manifest, options: EdgeOptions): Plan {
            val beams = options.beams ?: if (manifest.text == null) 1 else manifest.generation?.numBeams ?: 1
            if (beams < 1) throw InputException("The number of beams must be 1 or more, not $beams.")
            val whole = options.skip == SkipPolicy.OFF // segments read float keys, and prompts too
            if (options.kv == Kv.INT8 && manifest.graph(Engine.KV8) == null) {
                throw InputException("${manifest.name} has no graph over keys in int8; export the model again.")
            }
            if (options.kv == Kv.INT8 && !whole) {
                throw InputException("A KV cache in int8 needs all layers in one graph; leave out kv, or what skips layers.")
            }
            val hasInt8 = whole && manifest.graph(Engine.KV8) != null
            val prefills = whole && manifest.prefill?.known == true
            val auto = Speculation.chosen(Speculate.AUTO, manifest)
            val widths = if (auto == Speculate.OFF) listOf(1) else Speculation.widths(manifest)
            val choices = buildList {
                if (options.kv != Kv.INT8) {
                    if (prefills) add(Choice(false, true, widths[0]))
                    val least = if (hasInt8 && options.kv == Kv.AUTO) minOf(KV8_STEP, widths[0]) else 1
                    for (width in widths) if (width >= least) add(Choice(false, false, width))
                }
                if (hasInt8 && options.kv != Kv.FLOAT32) {
                    for (width in widths) if (width <= KV8_STEP) add(Choice(true, false, width))
                }
            }
            // Of an encoder's text as well, which may be longer than what the decoder writes.
            val limit = if (manifest.text == null) manifest.context else maxOf(manifest.context, manifest.encoder!!.maxLength)
            val most = options.context ?: minOf(DEFAULT_CONTEXT, limit)
            val plans = choices.map { choice ->
                val plan = { size: Int -> of(manifest, size, beams, choice, auto) }
                val size = if (options.memory == null) most else fitting(options.memory, most, plan)
                size to plan(size)
            }
            val wanted = options.context ?: minOf(GOAL, most)
            val (size, found) = plans.firstOrNull { (size, _) -> size >= wanted } ?: plans.maxBy { (size, _) -> size }
            val least = options.context ?: minOf(SMALLEST, most)
            val chosen = Speculation.chosen(options.speculate, manifest)
            if (size >= least && chosen == auto) return found
            if (size >= least) {
                val narrower = if (chosen == Speculate.OFF) listOf(1) else widths.filter { !found.int8 || it <= KV8_STEP }
                val like = narrower.map { of(manifest, found.context, beams, Choice(found.int8, found.prefill, it), chosen) }
                return like.firstOrNull { options.memory == null || it.bytes <= options.memory } ?: like.last()
            }
            val needed = choices.minOf { of(manifest, least, beams, it, auto).bytes }
            throw InputException(
                "${manifest.name} needs ${megabytes(needed)} MB for $least tokens, and ${options.memory!! / 1_000_000} MB " +
                    "are allowed; free memory, ask for fewer tokens, or take a smaller model.",
            )
        }

        private class Choice(val int8: Boolean, val prefill: Boolean, val width: Int)

        internal fun megabytes(bytes: Long) = (bytes + 999_999) / 1_000_000

        /** The largest size up to [most] whose plan fits; 0 where none does. */
        private fun fitting(memory: Long, most: Int, plan: (Int) -> Plan): Int {
            var low = 0
            var high = most
            while (low < high) {
                val middle = (low + high + 1) / 2
                if (plan(middle).bytes <= memory) low = middle else high = middle - 1
            }
            return low
        }

        /** The plan for [size] tokens of prompt and answer and, where there is an encoder, of its text. */
        private fun of(manifest: Manifest, size: Int, beams: Int, choice: Choice, speculate: Speculate): Plan {
            val int8 = choice.int8
            val prefill = choice.prefill
            val dims = manifest.dims
            val context = minOf(size, manifest.context)
            val encoding = manifest.text?.let { EncodingPlan(manifest, minOf(size, manifest.encoder!!.maxLength)) }
            val graphs = manifest.graphs.map { it.role }.filter { if (int8) it == Engine.KV8 else it !in LATER }
            val tables = manifest.kv.layers.map { it.window }.distinct().size
            val cached = context.toLong() * beams
            val kinds = linkedMapOf(
                "weights" to weights(manifest) + (encoding?.precise ?: 0),
                "graph" to graphs.sumOf { SESSION + (if (int8) BRANCHED else GRAPH) * graphSize(manifest, it) },
                "tables of positions" to (encoding?.tables(context) ?: (context.toLong() * dims.headDim * FLOAT * tables)),
                "keys and values" to (cached + 1) * manifest.kv.bytesPerToken(if (int8) 1 else FLOAT),
                "activations" to activations(manifest, context, beams, encoding?.source ?: 0, int8, prefill),
                "logits" to (2L * maxOf(beams, choice.width) + SAMPLING) * dims.vocabSize * FLOAT,
            )
            val drafts = Speculation.bytes(speculate, manifest, context, choice.width)
            if (drafts > 0) kinds["draft tables"] = drafts
            if (encoding != null) {
                kinds["keys and values of the text"] = encoding.cross
                kinds["encoder activations"] = encoding.activations
            }
            if (prefill) {
                val own = manifest.prefill!!.groups + listOfNotNull(head(manifest))
                kinds["prefill graph"] = SESSION + GRAPH * graphSize(manifest, Engine.PREFILL) + own.sumOf(::packed) +
                    2L * dims.hiddenSize * dims.hiddenSize * FLOAT
            }
            return Plan(context, encoding?.source ?: 0, beams, int8, prefill, kinds, choice.width)
        }

        internal fun graphSize(manifest: Manifest, role: String) = manifest.graph(role)?.let { manifest.size(it.path) } ?: 0

        /** What the output head is made of: the embedding, where it has no weights of its own. */
        private fun head(manifest: Manifest): TensorGroup? =
            manifest.groups.firstOrNull { it.name == "head" } ?: manifest.groups.firstOrNull { it.name.endsWith("embedding") }

        /** Bytes of all matrices as the kernels keep them. */
        internal fun weights(manifest: Manifest): Long {
            val unread = listOf("embedding", "head", "norm")
            val read = manifest.groups.filter { group -> unread.none { group.name.endsWith(it) } }
            return (read + listOfNotNull(head(manifest))).sumOf(::packed)
        }

        /** Bytes of a group's matrices as the kernels keep them. */
        internal fun packed(group: TensorGroup): Long = when {
            group.blockSize == 0 -> group.parameters * FLOAT
            group.method.startsWith("rows") -> group.bytes
            else -> group.bytes + group.parameters / group.blockSize * FLOAT // with the sums of blocks
        }

        private fun activations(
            manifest: Manifest, context: Int, beams: Int, source: Int, int8: Boolean, prefill: Boolean,
        ): Long {
            val dims = manifest.dims
            val chunk = if (source > 0) TEXT_START else if (prefill) 2 * PREFILL_CHUNK else PREFILL_CHUNK
            val tokens = maxOf(minOf(chunk, context), beams)
            val feedForward = width(manifest, "feed_forward", dims.numLayers, dims.hiddenSize)
            val attention = (dims.numHeads + 2L * dims.numKvHeads) * dims.headDim
            val row = manifest.kv.layers.maxOf { it.heads * it.headDim }
            val unpacked = if (int8) UNPACKED.toLong() * context * row else 0
            val scores = dims.numHeads * when {
                source > 0 -> CROSS_SCORES.toLong() * source
                arm -> context.toLong() // which attends without blocks
                else -> 0
            }
            // The host keeps a bias for its widest step, and the graph takes a copy of that of the step.
            val bias = if (source > 0) (maxOf(KEPT_STEP, beams) + tokens) * context.toLong() * beams else 0
            return (tokens * (7 * feedForward / 2 + 2 * attention + scores) + unpacked + bias) * FLOAT
        }

        /** Values per token of a feed-forward block's first products: gate and up, or one where there is no gate. */
        internal fun width(manifest: Manifest, group: String, layers: Int, hidden: Int): Long {
            val inner = manifest.dims.intermediateSize.toLong()
            val found = manifest.groups.firstOrNull { it.name == group } ?: return inner
            return maxOf(inner, found.parameters / (layers.toLong() * hidden) - inner)
        }
    }
}
