package dev.edgelm.engine

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.skip.SegmentedCache
import dev.edgelm.skip.SkipPolicy
import java.nio.FloatBuffer
import java.nio.LongBuffer
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.write

/** Tokens of a prompt that run in one step. */
internal const val PREFILL_CHUNK = 128

/**
 * Prompts of this many new tokens and more run through the int8 prefill graph, where the bundle has one, in steps of
 * twice as many tokens.
 */
internal const val PREFILL_GRAPH_FROM = 256

/**
 * A bundle's decoder, with its encoder where it has one, and one primitive, a step. Conversations live in caches, so that
 * one engine serves several threads; each cache is used by one at a time.
 *
 * Steps of a decoder without an encoder run an even number of tokens and rows, the last one twice where it would be odd:
 * kernels take rows by twos and a last one alone, which differs in its last bits. So answers do not depend on how a text
 * is cut into steps.
 *
 * [role]: `decoder`; `kv8` for keys and values in int8, which take a quarter of the memory;
 * or `skip`, of which the policy that [policies] makes for each cache says what runs.
 */
internal class Engine(
    val bundle: Bundle, val role: String, val context: Int, threads: Int?, private val prefills: Boolean,
    private val policies: (() -> SkipPolicy)? = null,
) : AutoCloseable {
    val int8 = role == KV8
    val valueBytes = if (int8) 1 else FLOAT
    private val environment: OrtEnvironment = Ort.environment(threads)
    private val weights = WeightsFile(bundle)
    private val session: OrtSession = Ort.open(environment, bundle, role)
    private val encoder: Encoder? = bundle.manifest.encoder?.let { Encoder(bundle, environment) }
    private val exact = encoder == null
    private var prefillSession: OrtSession? = null
    private val vocab = bundle.manifest.dims.vocabSize
    private val lock = ReentrantReadWriteLock()
    private val caches = HashSet<KvCache>()
    private var spare: KvMemory? = null
    private var closed = false

    /** Of the graph, by their names. */
    val inputs: Set<String> = session.inputNames
    val outputs: Set<String> = session.outputNames

    /** Whether a step can give the likeliest tokens alone, without their logits. */
    val chooses: Boolean = "tokens" in outputs

    /** Inputs that say what a token attends to; without them a step's tokens follow each other. */
    val biases: List<String> = inputs.filter { it.startsWith("attention_bias") }
    val takesTrees: Boolean = biases.isNotEmpty()
    val asksPositions: Boolean = "key_positions" in inputs

    /** Tokens of a text that LongRoPE reads by its short factors; null: all texts here are read by the same factors. */
    private val shortRope: Int? = bundle.manifest.shortRope?.takeIf { context <= it }

    /** Where the graphs' tables have a position of a text. */
    fun place(position: Int): Int = if (shortRope == null) position else bundle.manifest.context + minOf(position, shortRope - 1)

    /** An empty cache for up to [capacity] tokens. */
    fun newCache(capacity: Int): KvCache {
        if (capacity !in 1..context) {
            throw InputException("A conversation of $capacity tokens is more than the context of $context.")
        }
        return makeCache(capacity)
    }

    /** An empty cache of any size: beams share positions, which the context limits, not rows. */
    fun makeCache(capacity: Int): KvCache {
        lock.write {
            checkOpen()
            val kept = spare?.takeIf { it.rows > capacity }
            val memory = if (kept != null) {
                spare = null
                kept
            } else {
                freeSpare()
                // The row after the last one is for the token that runs twice.
                KvMemory(bundle.manifest.kv, maxOf(capacity, minOf(context, (capacity / ROUND + 1) * ROUND)) + 1, valueBytes)
            }
            val policy = policies?.invoke()
            val cache = if (policy == null) KvCache(environment, this, memory, capacity)
            else SegmentedCache(environment, this, memory, capacity, policy)
            return cache.also { caches += it }
        }
    }

    /** Close a cache, and keep its memory for the next one, so that answers do not wait for the collector. */
    fun takeBack(cache: KvCache): Unit = lock.write {
        if (!caches.remove(cache)) return // the model was closed before
        cache.release()
        if ((spare?.rows ?: 0) < cache.memory.rows) {
            freeSpare()
            spare = cache.memory
        } else {
            cache.memory.free()
        }
    }

    /** Hand back what is kept for later: the prefill graph and the memory of a cache. */
    fun trim() = lock.write {
        freeSpare()
        prefillSession?.close()
        prefillSession = null
    }

    /** Encode an input: what the decoder reads of it belongs to the cache that is given it (`KvCache.reset`). */
    fun encode(action: (Encoder) -> Cross): Cross = lock.read {
        checkOpen()
        weights.check()
        action(encoder!!)
    }

    /**
     * How many tokens from the next one on one step may run, each of which comes out as in a step of its own: at the end of
     * the bundle's context there is no row to run beside a last one.
     */
    fun maxExactStep(cache: KvCache): Int = maxOf(1, minOf(cache.maxExactStep(), bundle.manifest.context - 1 - cache.length))

    /** Run [count] tokens of [tokens] from [start] on, append them, and give logits of the last [rows] of them. */
    fun step(cache: KvCache, tokens: IntArray, start: Int, count: Int, rows: Int = 1): FloatBuffer =
        run(cache, tokens, start, count, rows, true, null) { session }!!.logits!!

    /** As the other, with logits of these [rows] of the [count]. */
    fun step(cache: KvCache, tokens: IntArray, start: Int, count: Int, rows: IntArray): FloatBuffer =
        run(cache, tokens, start, count, rows.size, true, null, rows) { session }!!.logits!!

    /** A step of tokens that do not follow each other: logits of all of them. */
    fun branch(cache: KvCache, tokens: IntArray, tree: Tree): FloatBuffer =
        run(cache, tokens, 0, tokens.size, tokens.size, true, tree) { session }!!.logits!!

    /** As [step], with the likeliest token of each row instead of its logits. */
    fun choose(cache: KvCache, tokens: IntArray, start: Int, count: Int, rows: Int = 1): LongBuffer =
        run(cache, tokens, start, count, rows, false, null) { session }!!.tokens!!

    /** As [step], in the int8 prefill graph, which this opens where it is not there yet. */
    fun prefillStep(cache: KvCache, tokens: IntArray, start: Int, count: Int, rows: Int = 1): FloatBuffer {
        while (true) { // until nobody hands the graph back in between
            lock.write {
                checkOpen()
                if (prefillSession == null) prefillSession = Ort.open(environment, bundle, PREFILL)
            }
            run(cache, tokens, start, count, rows, true, null) { prefillSession }?.let { return it.logits!! }
        }
    }

    /** Append a prompt's tokens from [start] on; logits of what follows. [goOn] is called between steps. */
    fun prefill(cache: KvCache, tokens: IntArray, start: Int, goOn: () -> Unit): FloatBuffer {
        val total = tokens.size - start
        val long = prefills && total >= PREFILL_GRAPH_FROM
        val chunk = if (long) 2 * PREFILL_CHUNK else PREFILL_CHUNK
        var at = start
        while (true) {
            goOn()
            val count = minOf(chunk, tokens.size - at)
            val logits = if (long) prefillStep(cache, tokens, at, count) else step(cache, tokens, at, count)
            at += count
            if (at == tokens.size) return logits
        }
    }

    private fun run(
        cache: KvCache, tokens: IntArray, start: Int, count: Int, rows: Int, logits: Boolean, tree: Tree?,
        picked: IntArray? = null, by: () -> OrtSession?,
    ): Step? = lock.read {
        checkOpen()
        weights.check()
        if (cache !in caches) throw EdgeException("The conversation was closed.")
        for (i in start until start + count) {
            if (tokens[i] !in 0 until vocab) {
                throw EdgeException("The token ${tokens[i]} is not one of the $vocab of ${bundle.manifest.name}; export it again.")
            }
        }
        val session = by() ?: return null
        require(count in 1..cache.room) { "a step of $count tokens on a cache with room for ${cache.room}" }
        // At the end of the bundle's context there is no position for one more.
        val padded = exact && count % 2 == 1 && cache.length + count < bundle.manifest.context
        val shape = StepShape(if (padded) count + 1 else count, if (exact) rows + rows % 2 else rows, logits)
        val step = cache.steps[shape] ?: Step(environment, cache, shape, vocab).also {
            if (count <= KEPT_STEP) cache.steps[shape] = it
        }
        try {
            step.fill(tokens, start, count, tree)
            if (picked == null) step.ask(count - rows, rows) else step.ask(picked)
            step.run(session, tree)
        } catch (e: OrtException) {
            throw EdgeException("${bundle.manifest.name} failed to compute: ${e.message}", e)
        } finally {
            if (count > KEPT_STEP) step.close() // its buffers stay readable
        }
        cache.length += count
        step
    }

    private fun freeSpare() {
        spare?.free()
        spare = null
    }

    private fun checkOpen() {
        if (closed) throw EdgeException("The model was closed.")
    }

    /** Wait for the steps that run, then release everything; answers that go on end with a sentence. */
    override fun close() {
        lock.write {
            if (closed) return
            closed = true
            for (cache in caches) {
                cache.release()
                cache.memory.free()
            }
            caches.clear()
            freeSpare()
            prefillSession?.close()
            session.close()
            encoder?.close()
            weights.close()
        }
    }

    companion object {
        const val DECODER = "decoder"
        const val KV8 = "kv8"
        const val PREFILL = "prefill"
        const val SKIP = "skip"
        private const val ROUND = 256 // rows, so that the memory of one answer often serves the next
    }
}
