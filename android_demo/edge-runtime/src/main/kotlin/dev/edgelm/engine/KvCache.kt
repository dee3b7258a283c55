package dev.edgelm.engine

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.edgelm.bundle.KvLayout
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.LongBuffer

internal const val FLOAT = 4

/** Buffers for keys and values, which one cache after another may take: key and value of each layer in turn. */
internal class KvMemory(layout: KvLayout, val rows: Int, valueBytes: Int) {
    val buffers: List<ByteBuffer>

    init {
        val made = ArrayList<ByteBuffer>()
        try {
            for (layer in layout.layers) {
                repeat(2) { made += Memory.allocate(rows.toLong() * layer.heads * layer.headDim * valueBytes) }
            }
        } catch (e: Throwable) {
            made.forEach(Memory::free)
            throw e
        }
        buffers = made
    }

    fun free() = buffers.forEach(Memory::free)
}

/**
 * Keys and values of one conversation, which the graph reads and writes in place. Rows below [length] are valid; going
 * back is a smaller [length].
 */
internal open class KvCache(
    environment: OrtEnvironment,
    val engine: Engine,
    val memory: KvMemory,
    val capacity: Int,
) : AutoCloseable {
    var length = 0
    val room: Int get() = capacity - length

    /** Tokens of the text that is answered: those before the answer. */
    var prompt = 0

    /** The first tokens that need not be run again when they are part of the next prompt. */
    open val reusable: Int get() = length

    /** `past.{i}.key` and so on, and the same memory as `present.{i}.key`. */
    val past = LinkedHashMap<String, OnnxTensor>()
    val present = LinkedHashMap<String, OnnxTensor>()
    val steps = HashMap<StepShape, Step>()

    /** The place in the text of each row; null where the graph does not ask. In a tree several rows share one. */
    private val positions: LongBuffer? = if (engine.asksPositions) direct(8 * memory.rows).asLongBuffer() else null

    /** What each token of a step attends to, [tokens, rows], all zeros but while a tree runs; null where no trees run. */
    val bias = if (engine.takesTrees) direct(FLOAT * KEPT_STEP * memory.rows).asFloatBuffer() else null

    private var logits: FloatBuffer? = null

    /** What an encoder made of the input. */
    var cross: Cross? = null
        private set
    private val last = direct(FLOAT).asIntBuffer()
    private val total = direct(FLOAT).asIntBuffer()

    init {
        val rows = memory.rows.toLong()
        val type = if (engine.int8) OnnxJavaType.INT8 else OnnxJavaType.FLOAT
        for ((i, layer) in engine.bundle.manifest.kv.layers.withIndex()) {
            val shape = longArrayOf(1, layer.heads.toLong(), rows, layer.headDim.toLong())
            for ((j, part) in PARTS.withIndex()) {
                val tensor = OnnxTensor.createTensor(environment, memory.buffers[2 * i + j], shape, type)
                past["past.$i.$part"] = tensor
                present["present.$i.$part"] = tensor
            }
        }
        past["seqlens_k"] = OnnxTensor.createTensor(environment, last, longArrayOf(1))
        past["total_sequence_length"] = OnnxTensor.createTensor(environment, total, longArrayOf())
        if (positions != null) {
            past["key_positions"] = OnnxTensor.createTensor(environment, positions, longArrayOf(rows))
            for (i in 0 until memory.rows) positions.put(i, i.toLong())
        }
    }

    /** Forget everything, and read [given], of the next input, which belongs to this cache then. */
    fun reset(given: Cross?) {
        cross?.close()
        cross = given
        truncate(0)
        if (given != null) steps.values.forEach { it.read(given) }
    }

    /** Keep the first [rows], after which tokens follow each other again. */
    fun truncate(rows: Int) {
        length = rows
        if (positions != null) for (i in rows until memory.rows) positions.put(i, i.toLong())
    }

    /** How many tokens from the next one on one step may run, as far as this cache's rows are concerned. */
    open fun maxExactStep(): Int = room

    /** Tell the graph what rows there are after a step of [size] tokens, and where those of a [tree] stand in the text. */
    open fun add(size: Int, tree: Tree?) {
        last.put(0, length + size - 1)
        total.put(0, length + size)
        if (positions == null || tree == null) return
        for (i in tree.positions.indices) positions.put(length + i, tree.positions[i].toLong())
    }

    /** What else than logits or tokens the step is to give, by its names in the graph. */
    open fun asked(): Set<String> = emptySet()

    /** What the step [made], before its tokens count as rows. */
    open fun observe(made: OrtSession.Result) = Unit

    /** Logits [rows, vocab], in memory that steps of all shapes share: the next one overwrites them. */
    fun logits(rows: Int, vocab: Int): FloatBuffer {
        val kept = logits?.takeIf { it.capacity() >= rows * vocab }
        // Twice as many each time, so that all that were made take no more than twice what the last one does.
        val shared = kept ?: direct(FLOAT * 2 * Integer.highestOneBit(rows - 1) * vocab).asFloatBuffer().also { logits = it }
        return shared.duplicate().apply { limit(rows * vocab) }
    }

    /** Keep only [rows], in their order, and drop all others: what is left of a tree when its branches die. */
    fun compact(rows: IntArray) {
        var start = 0 // rows before this one stay in place
        while (start < rows.size && rows[start] == start) start++
        for ((i, layer) in engine.bundle.manifest.kv.layers.withIndex()) {
            for (j in 0..1) {
                val size = layer.headDim * engine.valueBytes
                val from = memory.buffers[2 * i + j].duplicate()
                val to = memory.buffers[2 * i + j].duplicate()
                for (head in 0 until layer.heads) {
                    val first = head * memory.rows
                    for (row in start until rows.size) {
                        from.limit((first + rows[row] + 1) * size).position((first + rows[row]) * size)
                        to.limit((first + row + 1) * size).position((first + row) * size)
                        to.put(from)
                        from.clear()
                        to.clear()
                    }
                }
            }
        }
        if (positions != null) for (row in start until rows.size) positions.put(row, positions.get(rows[row]))
        length = rows.size
    }

    /** Release what the graphs see of it; the memory goes back to the engine. */
    override fun close() = engine.takeBack(this)

    /** What [close] does of it, when no step runs. */
    fun release() {
        steps.values.forEach { it.close() }
        past.values.forEach { it.close() }
        cross?.close()
    }

    private companion object {
        val PARTS = listOf("key", "value")
    }
}

internal fun direct(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
