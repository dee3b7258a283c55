package dev.edgelm.profile

import dev.edgelm.GenerateOptions
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.decode.Circling
import dev.edgelm.decode.answer
import dev.edgelm.decode.Sampler
import dev.edgelm.decode.SamplingOptions
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.engine.Ort
import dev.edgelm.engine.usableCores
import dev.edgelm.memory.ProcessMemory
import dev.edgelm.text.Tokenizer
import java.time.OffsetDateTime
import java.time.temporal.ChronoUnit

/** The device in words, which a library without Android's classes cannot know. */
data class DeviceName(val name: String, val cpu: String, val os: String, val memoryBytes: Long? = null) {
    /** It, with what a measurement depends on besides. */
    internal fun measured(): Device {
        val cores = usableCores()
        return Device(name, cpu, cores, memoryBytes, os, "onnxruntime ${Ort.version}", "CPUExecutionProvider", Ort.threads)
    }
}

/**
 * What is measured.
 *
 * @property contexts tokens of the prompt, and in the cache; those that the model's context has no room for are omitted.
 *   The default are those of `edge profile`, so that files of both can be compared.
 * @property sizes tokens of a step.
 * @property secondsPerRow how long each figure may take; three measurements are made in any case.
 */
data class ProfileOptions(
    val contexts: List<Int> = listOf(16, 128, 512, 2000),
    val sizes: List<Int> = listOf(1, 2, 4, 8),
    val secondsPerRow: Double = 2.0,
) {
    init {
        if (contexts.isEmpty() || contexts.min() < 1) throw InputException("A context to measure at has 1 token or more.")
        if (1 !in sizes || sizes.min() < 1) throw InputException("The step sizes must be 1 or more, and one of them 1.")
    }
}

/** Measures one bundle. [goOn] is called between steps, and throws where measuring is to end. */
internal class Profiling(
    private val engine: Engine,
    private val tokenizer: Tokenizer,
    private val device: DeviceName,
    private val options: ProfileOptions,
    private val goOn: () -> Unit,
) {
    private val bundle = engine.bundle
    private val begun = System.nanoTime()
    private val contexts = options.contexts.sorted().filter { it + ROOM <= engine.context }
        .ifEmpty { listOf(maxOf(1, engine.context / 2)) }
    private val capacity = minOf(engine.context, contexts.last() + maxOf(ROOM, options.sizes.max()))
    private val words = tokenizer.encode(TEXT)
    private val text = IntArray(capacity) { words[it % words.size] }

    /** The profile as it grows: after each figure a document with all that is known so far. */
    fun profiles(): Sequence<Profile> = sequence {
        engine.newCache(capacity).use { cache ->
            var profile = empty()
            for (length in contexts) {
                val time = firstToken(cache, length)
                profile = profile.copy(ttft = profile.ttft + FirstToken(length, time), seconds = seconds())
                yield(profile)
            }
            engine.prefill(cache.empty(), text.copyOf(contexts.last()), 0, goOn) // rows for every context below
            for (context in contexts) {
                profile = profile.copy(decode = profile.decode + decode(cache, context), memory = memory(), seconds = seconds())
                yield(profile)
                val steps = steps(cache, context)
                profile = when {
                    engine.int8 -> profile.copy(curveInt8 = profile.curveInt8 + steps, seconds = seconds())
                    else -> profile.copy(curve = profile.curve + steps, seconds = seconds())
                }
                yield(profile)
            }
        }
    }

    private fun firstToken(cache: KvCache, length: Int): Stats {
        val prompt = text.copyOf(length)
        return summarize(measured { answer(engine, tokenizer, cache.empty(), prompt, ONE, goOn).next().timings!!.firstTokenMs })
    }

    /** Tokens one after another, whether or not the model ends its answer. */
    private fun decode(cache: KvCache, context: Int): Decode {
        val sampler = Sampler(ONE.sampling, IntArray(0), bundle.manifest.dims.vocabSize)
        val token = IntArray(1)
        val last = minOf(context + ROOM, capacity)
        cache.length = context
        val times = measured {
            if (cache.length == last) cache.length = context
            val start = System.nanoTime()
            token[0] = if (engine.chooses) engine.choose(cache, token, 0, 1).get(0).toInt() else sampler.next(engine.step(cache, token, 0, 1))
            milliseconds(start)
        }
        return Decode(context, summarize(times), 1000 * times.size / times.sum())
    }

    /** Steps of all sizes in turns, so that a device that grows warm slows all of them alike. */
    private fun steps(cache: KvCache, context: Int): List<StepCost> {
        val sizes = options.sizes.sorted().filter { context + it <= capacity }
        val times = sizes.map { ArrayList<Double>() }
        measured {
            for ((i, size) in sizes.withIndex()) {
                cache.length = context
                val start = System.nanoTime()
                engine.step(cache, text, 0, size, rows = size)
                times[i] += milliseconds(start)
            }
            0.0
        }
        return sizes.indices.map { i ->
            val stats = summarize(times[i].drop(1)) // the first is the warm-up
            StepCost(sizes[i], context, stats.p50Ms, stats.lowMs, stats.highMs, stats.count)
        }
    }

    /** What [once] gives again and again while there is time, after a warm-up. */
    private fun measured(once: () -> Double): List<Double> {
        goOn()
        once()
        val until = System.nanoTime() + (options.secondsPerRow * 1e9).toLong()
        val times = ArrayList<Double>()
        while (times.size < LEAST || (times.size < MOST && System.nanoTime() < until)) {
            goOn()
            times += once()
        }
        return times
    }

    private fun empty() = Profile(
        producer = PRODUCER,
        created = OffsetDateTime.now().truncatedTo(ChronoUnit.SECONDS).toString(),
        seconds = seconds(),
        device = device.measured(),
        bundle = info(bundle),
        context = capacity,
        notes = listOf("Memory is that of the whole app.") +
            if (engine.int8) listOf("Keys and values were kept in int8.") else emptyList(),
    )

    private fun memory(): MemoryUse? = ProcessMemory.now()?.let {
        MemoryUse(it.peakResident, it.resident, null, it.private, capacity)
    }

    private fun seconds() = (System.nanoTime() - begun) / 1e9

    private companion object {
        const val PRODUCER = "edge-android 0.1.0"
        const val ROOM = 32 // tokens that are decoded after a context before it is gone back to
        const val LEAST = 3
        const val MOST = 200
        const val TEXT = "The lighthouse keeper wrote down the weather every evening, and the ships that passed. "
        val ONE = GenerateOptions(maxTokens = 1, sampling = SamplingOptions(circles = Circling.ALLOW))

        fun milliseconds(start: Long) = (System.nanoTime() - start) / 1e6

        fun KvCache.empty() = also { it.length = 0 }

        fun info(bundle: Bundle) = with(bundle.manifest) {
            BundleInfo(
                name, bundle.manifestSha256(), family, kind, "prompt", weights, context,
                groups.sumOf { it.parameters }, files.sumOf { it.size },
            )
        }
    }
}
