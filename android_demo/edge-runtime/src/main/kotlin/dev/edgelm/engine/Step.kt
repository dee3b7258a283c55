package dev.edgelm.engine

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer
import java.nio.LongBuffer

internal data class StepShape(val size: Int, val rows: Int, val logits: Boolean)

/** What the host writes and reads of steps of one shape on one cache. Made once: a step allocates nothing here. */
internal class Step(environment: OrtEnvironment, private val cache: KvCache, shape: StepShape, vocab: Int) : AutoCloseable {
    private val size = shape.size
    private val ids = direct(8 * size).asLongBuffer()
    private val positions = direct(8 * size).asLongBuffer()
    private val wanted = direct(8 * shape.rows).asLongBuffer()

    /** Logits [R, V] of the rows that are wanted. */
    val logits: FloatBuffer? = if (shape.logits) direct(FLOAT * shape.rows * vocab).asFloatBuffer() else null

    /** Or the likeliest token [R] of each. */
    val tokens: LongBuffer? = if (shape.logits) null else direct(8 * shape.rows).asLongBuffer()

    private val own = LinkedHashMap<String, OnnxTensor>()
    private val inputs: Map<String, OnnxTensor>
    private val outputs: Map<String, OnnxTensor>

    init {
        val rows = shape.rows.toLong()
        own["input_ids"] = OnnxTensor.createTensor(environment, ids, longArrayOf(1, size.toLong()))
        own["position_ids"] = OnnxTensor.createTensor(environment, positions, longArrayOf(1, size.toLong()))
        own["logit_rows"] = OnnxTensor.createTensor(environment, wanted, longArrayOf(rows))
        inputs = cache.past + own
        val name = if (shape.logits) "logits" else "tokens"
        val made = if (logits != null) {
            OnnxTensor.createTensor(environment, logits, longArrayOf(1, rows, vocab.toLong()))
        } else {
            OnnxTensor.createTensor(environment, tokens!!, longArrayOf(1, rows))
        }
        own[name] = made
        outputs = cache.present + (name to made)
    }

    /** Take [count] tokens from [start] on, the last one again where the step is longer, after the cache's rows. */
    fun fill(given: IntArray, start: Int, count: Int) {
        for (i in 0 until size) {
            ids.put(i, given[start + minOf(i, count - 1)].toLong())
            positions.put(i, (cache.length + i).toLong())
        }
    }

    /** Ask for rows from [first] on, the last one of [count] again where more are wanted. */
    fun ask(first: Int, count: Int) {
        for (i in 0 until wanted.capacity()) wanted.put(i, (first + minOf(i, count - 1)).toLong())
    }

    fun run(session: OrtSession) {
        cache.ends(cache.length + size)
        session.run(inputs, NOTHING, outputs).close()
    }

    override fun close() = own.values.forEach { it.close() }

    private companion object {
        val NOTHING = emptySet<String>()
    }
}
