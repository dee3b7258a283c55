package dev.edgelm.engine

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import dev.edgelm.bundle.KvLayout
import java.nio.ByteBuffer
import java.nio.ByteOrder

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
internal class KvCache(
    environment: OrtEnvironment,
    private val engine: Engine,
    val memory: KvMemory,
    val capacity: Int,
) : AutoCloseable {
    var length = 0
    val room: Int get() = capacity - length

    /** `past.{i}.key` and so on, and the same memory as `present.{i}.key`. */
    val past = LinkedHashMap<String, OnnxTensor>()
    val present = LinkedHashMap<String, OnnxTensor>()
    val steps = HashMap<StepShape, Step>()
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
    }

    /** Tell the graph how many rows there are after the step. */
    fun ends(end: Int) {
        last.put(0, end - 1)
        total.put(0, end)
    }

    /** Release what the graphs see of it; the memory goes back to the engine. */
    override fun close() = engine.takeBack(this)

    /** What [close] does of it, when no step runs. */
    fun release() {
        steps.values.forEach { it.close() }
        past.values.forEach { it.close() }
    }

    private companion object {
        val PARTS = listOf("key", "value")
    }
}

internal fun direct(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
