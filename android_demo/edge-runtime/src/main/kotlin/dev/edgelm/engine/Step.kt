package dev.edgelm.engine

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer
import java.nio.LongBuffer

/** The largest step whose buffers are kept for the next of its shape. */
internal const val KEPT_STEP = 16

internal const val BLOCKED = -1e9f // added to the score of what a token must not attend to

internal data class StepShape(val size: Int, val rows: Int, val logits: Boolean)

/**
 * Tokens of one step that do not follow each other: beams.
 *
 * [positions] [S]: each token's place in its text. [bias]: S rows of the cache's length after the step, 0 where a token
 * attends to a row and [BLOCKED] where it does not; a token never attends to a later one.
 */
internal class Tree(val positions: IntArray, val bias: Array<FloatArray>)

/** What the host writes and reads of steps of one shape on one cache. Made once: a step allocates nothing here. */
internal class Step(environment: OrtEnvironment, private val cache: KvCache, shape: StepShape, vocab: Int) : AutoCloseable {
    private val size = shape.size
    private val ids = direct(8 * size).asLongBuffer()
    private val positions = direct(8 * size).asLongBuffer()
    private val wanted = direct(8 * shape.rows).asLongBuffer()

    /** Logits [R, V] of the rows that are wanted. */
    val logits: FloatBuffer? = when {
        !shape.logits -> null
        shape.rows > 2 && size <= KEPT_STEP -> cache.logits(shape.rows, vocab)
        else -> direct(FLOAT * shape.rows * vocab).asFloatBuffer()
    }

    /** Or the likeliest token [R] of each. */
    val tokens: LongBuffer? = if (shape.logits) null else direct(8 * shape.rows).asLongBuffer()

    private val bias: FloatBuffer? = cache.bias?.let {
        if (size <= KEPT_STEP) it else direct(FLOAT * size * cache.memory.rows).asFloatBuffer()
    }
    private val own = LinkedHashMap<String, OnnxTensor>()
    private val inputs = LinkedHashMap<String, OnnxTensor>()
    private val outputs: Map<String, OnnxTensor>

    init {
        val rows = shape.rows.toLong()
        own["input_ids"] = OnnxTensor.createTensor(environment, ids, longArrayOf(1, size.toLong()))
        own["position_ids"] = OnnxTensor.createTensor(environment, positions, longArrayOf(1, size.toLong()))
        own["logit_rows"] = OnnxTensor.createTensor(environment, wanted, longArrayOf(rows))
        if (bias != null) {
            val part = bias.duplicate()
            part.limit(size * cache.memory.rows)
            val columns = cache.memory.rows.toLong()
            val tensor = OnnxTensor.createTensor(environment, part, longArrayOf(1, 1, size.toLong(), columns))
            own["attention_bias"] = tensor
            for (name in cache.engine.biases) inputs[name] = tensor
        }
        for ((name, tensor) in cache.past + own) if (name in cache.engine.inputs) inputs[name] = tensor
        cache.cross?.let(::read)
        val name = if (shape.logits) "logits" else "tokens"
        val made = if (logits != null) {
            OnnxTensor.createTensor(environment, logits, longArrayOf(1, rows, vocab.toLong()))
        } else {
            OnnxTensor.createTensor(environment, tokens!!, longArrayOf(1, rows))
        }
        own[name] = made
        outputs = cache.present + (name to made)
    }

    /** Read what an encoder made of the next input. */
    fun read(cross: Cross) {
        inputs += cross.tensors
    }

    /** Take [count] tokens from [start] on, the last one again where the step is longer, after the cache's rows. */
    fun fill(given: IntArray, start: Int, count: Int, tree: Tree?) {
        for (i in 0 until size) {
            ids.put(i, given[start + minOf(i, count - 1)].toLong())
            positions.put(i, (tree?.positions?.get(i) ?: cache.engine.place(cache.length + i)).toLong())
        }
    }

    /** Ask for rows from [first] on, the last one of [count] again where more are wanted. */
    fun ask(first: Int, count: Int) {
        for (i in 0 until wanted.capacity()) wanted.put(i, (first + minOf(i, count - 1)).toLong())
    }

    /** Ask for these rows. */
    fun ask(rows: IntArray) {
        for (i in 0 until wanted.capacity()) wanted.put(i, rows[minOf(i, rows.size - 1)].toLong())
    }

    fun run(session: OrtSession, tree: Tree?) {
        cache.add(size, tree)
        if (tree != null) attend { row, column -> tree.bias[row][column] }
        try {
            session.run(inputs, cache.asked(), outputs).use(cache::observe)
        } finally {
            if (tree != null) attend { _, _ -> 0f }
        }
    }

    private inline fun attend(value: (Int, Int) -> Float) {
        for (row in 0 until size) {
            for (column in 0 until cache.length + size) bias!!.put(row * cache.memory.rows + column, value(row, column))
        }
    }

    override fun close() = own.values.forEach { it.close() }
}
