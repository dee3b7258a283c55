package dev.edgelm.check

import dev.edgelm.BundleException
import dev.edgelm.EdgeException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.GOLDEN
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.readJson
import dev.edgelm.decode.likeliest
import dev.edgelm.engine.Encoder
import dev.edgelm.engine.Engine
import dev.edgelm.skip.allLayers
import java.nio.FloatBuffer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Serializable

/** The best tokens of one step, best first, and their logits. */
@Serializable
internal data class TopLogits(val ids: List<Int>, val logits: List<Float>)

@Serializable
internal data class GoldenCase(
    val promptIds: List<Int>,
    val greedyIds: List<Int>,
    val first: TopLogits,
    val last: TopLogits,
    val sourceIds: List<Int> = emptyList(),
    val sourceSeed: Int? = null,
)

/** What a graph that rounds otherwise says along a recorded answer. */
@Serializable
internal data class FormCase(val ids: List<Int>, val first: TopLogits, val last: TopLogits)

@Serializable
internal data class GoldenForm(val role: String, val tolerance: Float, val cases: List<FormCase>)

@Serializable
internal data class Golden(val tolerance: Float, val cases: List<GoldenCase>, val forms: List<GoldenForm> = emptyList()) {
    /** What no export records; null where all is well. */
    fun fault(manifest: Manifest): String? {
        val vocab = manifest.dims.vocabSize
        val tokens = cases.sumOf { it.promptIds.size + it.greedyIds.size + it.sourceIds.size }
        if (cases.isEmpty() || cases.size > MOST_CASES || tokens > MOST_TOKENS) return "it has ${cases.size} answers of $tokens tokens"
        for ((i, case) in cases.withIndex()) {
            val known = (case.promptIds + case.greedyIds + case.sourceIds).all { it in 0 until vocab }
            val long = case.promptIds.size + case.greedyIds.size > manifest.context
            val own = FormCase(case.greedyIds, case.first, case.last)
            if (case.promptIds.isEmpty() || !known || long || !own.fits(case.greedyIds.size, vocab)) {
                return "cases[$i] is no recorded answer of this model"
            }
        }
        for (form in forms) {
            val alike = form.cases.size == cases.size &&
                form.cases.zip(cases).all { (of, case) -> of.fits(case.greedyIds.size, vocab) }
            if (!alike) return "forms '${form.role.take(60)}' is no record of this model's answers"
        }
        for (tolerance in forms.map { it.tolerance } + tolerance) {
            if (tolerance !in 0f..MOST_TOLERANCE) {
                return "it tolerates that logits differ by $tolerance, and at most $MOST_TOLERANCE says anything of a model"
            }
        }
        return null
    }

    private fun FormCase.fits(size: Int, vocab: Int) = ids.size == size && ids.isNotEmpty() && ids.all { it in 0 until vocab } &&
        listOf(first, last).all { top ->
            top.ids.size in 1..MOST_TOP && top.logits.size == top.ids.size && top.ids.all { it in 0 until vocab } &&
                top.logits.all { it.isFinite() }
        }
}

private const val MOST_BYTES = 16 shl 20 // of the file
private const val MOST_TOLERANCE = 32f // exports wrote up to 2.9; one this much larger lets anything pass
private const val MOST_CASES = 256
private const val MOST_TOKENS = 1 shl 16 // of all cases together
private const val MOST_TOP = 64

/**
 * What a replay of a bundle's recorded answers found: [faults] are sentences; near-ties are tokens whose logits lie
 * within the tolerance, of which a few are no damage.
 */
class GoldenReport internal constructor(
    val tokens: Int, val nearTies: Int, val largestDifference: Float, val faults: List<String>,
)

/**
 * Replay the recorded answers of a bundle in the graph with the role `decoder`, `kv8`, `prefill` or `skip`, as
 * docs/reference/bundle-format.md says: the recorded tokens are fed, whatever this machine's own choice is.
 */
fun replayGolden(bundle: Bundle, role: String = Engine.DECODER, threads: Int? = null): GoldenReport {
    val file = bundle.file(GOLDEN)
    val golden = try {
        Manifest.json.decodeFromString(Golden.serializer(), readJson(file, MOST_BYTES))
    } catch (e: SerializationException) {
        throw BundleException("$file cannot be read: ${e.message.orEmpty().take(300)}; copy the bundle again.", e)
    }
    golden.fault(bundle.manifest)?.let { throw BundleException("$file cannot be used: $it; export the model again.") }
    val own = golden.cases.map { FormCase(it.greedyIds, it.first, it.last) }
    val form = golden.forms.firstOrNull { it.role == role } ?: GoldenForm(role, golden.tolerance, own)
    val context = golden.cases.maxOf { it.promptIds.size + it.greedyIds.size }
    val decoder = if (role == Engine.PREFILL) Engine.DECODER else role
    val policies = if (role == Engine.SKIP) ({ allLayers(bundle.manifest) }) else null
    Engine(bundle, decoder, context, threads, prefills = false, policies).use { engine ->
        val replay = Replay(engine, role, form.tolerance)
        for ((case, wanted) in golden.cases.zip(form.cases)) replay.run(case, wanted)
        return replay.report()
    }
}

/** Audio that any host can make alike: see docs/reference/bundle-format.md. */
private fun noise(seed: Int): FloatArray {
    var state = seed
    return FloatArray(NOISE) {
        state = 1664525 * state + 1013904223
        ((state ushr 16) - 32768) * (0.1f / 32768)
    }
}

private const val NOISE = 32_000 // samples

private class Replay(private val engine: Engine, private val role: String, private val tolerance: Float) {
    private val vocab = engine.bundle.manifest.dims.vocabSize
    private val row = FloatArray(vocab)
    private val faults = ArrayList<String>()
    private val room = Encoder.Room()
    private var prompts = 0
    private var tokens = 0
    private var ties = 0
    private var largest = 0f

    fun run(case: GoldenCase, wanted: FormCase) {
        prompts++
        val prompt = case.promptIds.toIntArray()
        val answer = case.greedyIds.toIntArray()
        engine.newCache(prompt.size + answer.size).use { cache ->
            if (engine.bundle.manifest.encoder != null) {
                cache.reset(engine.encode { encoder ->
                    val samples = case.sourceSeed?.let(::noise) ?: return@encode encoder.encodeText(case.sourceIds.toIntArray(), room)
                    encoder.encodeAudio(samples, 0, samples.size, room)
                })
            }
            if (role == Engine.PREFILL) {
                compare(engine.prefillStep(cache, prompt, 0, prompt.size), 0, 0, wanted)
                val rest = answer.size - 1
                if (rest > 0) {
                    val logits = engine.prefillStep(cache, answer, 0, rest, rest)
                    for (i in 0 until rest) compare(logits, i, i + 1, wanted)
                }
            } else {
                compare(engine.step(cache, prompt, 0, prompt.size), 0, 0, wanted)
                for (i in 1 until answer.size) {
                    compare(engine.step(cache, answer, i - 1, 1), 0, i, wanted)
                }
            }
        }
    }

    private fun compare(logits: FloatBuffer, at: Int, step: Int, wanted: FormCase) {
        logits.position(at * vocab)
        logits.get(row)
        logits.position(0)
        val place = "prompt $prompts, token ${step + 1}"
        val own = try {
            likeliest(row)
        } catch (e: EdgeException) {
            faults += "$place: a logit is no number"
            return
        }
        val margin = row[own] - row[wanted.ids[step]]
        tokens++
        if (!(margin <= tolerance)) { // so that NaN is a fault
            faults += "$place: the token $own is better than the recorded one by $margin"
        } else if (own != wanted.ids[step]) {
            ties++
        }
        for ((i, top) in listOf(0 to wanted.first, wanted.ids.size - 1 to wanted.last)) {
            if (i != step) continue
            val apart = top.ids.indices.map { row[top.ids[it]] - top.logits[it] }
            val range = apart.max() - apart.min()
            largest = maxOf(largest, range)
            if (!(range <= tolerance)) faults += "$place: two logits are $range farther or closer than recorded"
        }
    }

    fun report(): GoldenReport {
        if (ties * MOST_TIES > tokens) faults += "$ties of $tokens tokens are near-ties, of which there should be a few"
        return GoldenReport(tokens, ties, largest, faults)
    }

    private companion object {
        const val MOST_TIES = 8 // in so many tokens one is right
    }
}
