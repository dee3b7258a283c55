package dev.edgelm.skip

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.edgelm.engine.Engine
import dev.edgelm.engine.FLOAT
import dev.edgelm.engine.KvCache
import dev.edgelm.engine.KvMemory
import dev.edgelm.engine.Tree
import dev.edgelm.engine.direct
import java.nio.LongBuffer

/**
 * Keys and values of a decoder that runs in units, whose layers may hold different tokens: [policy] says which units run.
 *
 * `length` counts tokens. The rows of a layer stand without gaps, in the tokens' order: attention reads the first so many, so
 * that a token which a layer skipped is not there for it. All layers of a unit hold the same tokens.
 */
internal class SegmentedCache(
    environment: OrtEnvironment, engine: Engine, memory: KvMemory, capacity: Int, private val policy: SkipPolicy,
) : KvCache(environment, engine, memory, capacity) {
    private val units = engine.bundle.manifest.segments.size
    private val hidden = engine.bundle.manifest.dims.hiddenSize
    private val runs = direct(units)

    /** What the graph reads of each unit: how many tokens it holds, and then one less. */
    private val counts = direct(2 * units * FLOAT).asIntBuffer()

    /** The place in the text of each row of a unit; null where the graph does not ask. */
    private val places = ArrayList<LongBuffer?>()

    /** Which tokens ran through each unit. */
    private val ran = Array(units) { BooleanArray(memory.rows) }
    private var known = 0 // tokens that `ran` says something about
    private var alike = 0 // of these the first ones that ran as a prompt does
    private var observing = false
    private val watched: Set<String>

    init {
        for (unit in 0 until units) {
            counts.put(units + unit, -1)
            val run = runs.duplicate().apply { position(unit).limit(unit + 1) }.slice()
            past["run.$unit"] = OnnxTensor.createTensor(environment, run, longArrayOf(), OnnxJavaType.BOOL)
            past["total_sequence_length.$unit"] = OnnxTensor.createTensor(environment, count(unit), longArrayOf())
            past["seqlens_k.$unit"] = OnnxTensor.createTensor(environment, count(units + unit), longArrayOf(1))
            val name = "key_positions.$unit"
            val at = if (name in engine.inputs) direct(8 * memory.rows).asLongBuffer() else null
            if (at != null) past[name] = OnnxTensor.createTensor(environment, at, longArrayOf(memory.rows.toLong()))
            places += at
        }
        watched = policy.watched.flatMap { listOf("at.$it.x", "at.$it.added") }.filter { it in engine.outputs }.toSet()
    }

    private fun count(at: Int) = counts.duplicate().apply { position(at).limit(at + 1) }.slice()

    /**
     * The first tokens whose rows are those that a new prompt would get: an answer's, of which some layers were skipped, are
     * run again when it becomes part of the next prompt.
     */
    override val reusable: Int get() = minOf(alike, length)

    override fun maxExactStep(): Int = minOf(room, policy.maxExactStep(this))

    override fun add(size: Int, tree: Tree?) {
        follow()
        observing = watched.isNotEmpty() && length < prompt
        val route = policy.route(this)
        val asPrompt = policy.uniform || length < prompt
        val end = length + size
        for (unit in 0 until units) {
            runs.put(unit, if (route[unit]) 1 else 0)
            ran[unit].fill(route[unit], length, end)
            if (!route[unit]) continue
            val held = counts.get(unit)
            places[unit]?.let { at -> for (i in 0 until size) at.put(held + i, (length + i).toLong()) }
            hold(unit, held + size)
        }
        if (asPrompt && alike == length) alike = end
        known = end
    }

    /** Follow `length`, which somebody may have lowered. */
    private fun follow() {
        if (length >= known) return
        for (unit in 0 until units) {
            var held = counts.get(unit)
            for (row in length until known) if (ran[unit][row]) held--
            hold(unit, held)
        }
        known = length
        alike = minOf(alike, length)
    }

    private fun hold(unit: Int, rows: Int) {
        counts.put(unit, rows)
        counts.put(units + unit, rows - 1)
    }

    override fun asked(): Set<String> = if (observing) watched else super.asked()

    override fun observe(made: OrtSession.Result) {
        if (!observing) return
        for (unit in policy.watched) {
            val stream = values(made, "at.$unit.x")
            val added = "at.$unit.added"
            if (added in watched) values(made, added).forEachIndexed { i, value -> stream[i] += value }
            policy.observe(length, unit, Stream(stream, hidden))
        }
    }

    private fun values(made: OrtSession.Result, name: String): FloatArray {
        val values = (made.get(name).get() as OnnxTensor).floatBuffer
        return FloatArray(values.remaining()).also(values::get)
    }
}
