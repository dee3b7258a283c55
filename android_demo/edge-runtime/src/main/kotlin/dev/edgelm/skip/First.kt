package dev.edgelm.skip

import dev.edgelm.BundleException
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.readSmall
import java.io.IOException
import kotlin.math.exp
import kotlin.math.sqrt

/**
 * FiRST: a router for each layer reads the prompt and decides whether the answer needs the layer. Units are left out by the
 * mean probability that they are needed: those below [threshold], or the [skip] lowest.
 *
 * Source: Jain et al. 2024, FiRST: Finetuning Router-Selective Transformers for Input-Adaptive Latency Reduction (arXiv
 * 2410.12513). Here the prompt runs through all layers and routers decide for the answer's tokens.
 */
internal class First private constructor(
    manifest: Manifest, private val routers: Routers, private val threshold: Double, private val skip: Int?,
) : PromptPolicy(manifest, routers.units, watched = routers.units) {
    override fun observe(start: Int, unit: Int, stream: Stream) {
        val place = place(unit)
        val weights = routers.weights[place]
        val hidden = stream.hidden
        for (token in 0 until stream.size) {
            var product = 0.0
            var squares = 0.0
            for (i in 0 until hidden) {
                val value = stream.values[token * hidden + i].toDouble()
                product += value * weights[i]
                squares += value * value
            }
            val logit = product / sqrt(squares / hidden + EPSILON) + weights[hidden]
            note(place, start + token, 1 / (1 + exp(-logit)))
        }
    }

    override fun choose(means: DoubleArray): List<Int> =
        if (skip == null) means.indices.filter { means[it] < threshold } else lowest(means, skip)

    companion object {
        private const val THRESHOLD = 0.5 // of the mean probability that a layer is needed
        private const val EPSILON = 1e-6 // of the root mean square that a router divides the stream by

        fun maker(bundle: Bundle, setting: String): () -> SkipPolicy {
            val routers = Routers.read(bundle, middle(bundle, LAYERS, "first"))
            val key = setting.substringBefore('=')
            val value = setting.substringAfter('=', "")
            val most = routers.units.size
            var threshold = THRESHOLD
            var skip: Int? = null
            val understood = when (key) {
                "" -> setting.isEmpty()
                "skip" -> {
                    skip = value.takeIf { text -> text.all { it in '0'..'9' } }?.toIntOrNull()
                    skip in 0..most
                }
                "threshold" -> {
                    threshold = number(value) ?: -1.0
                    threshold in 0.0..1.0
                }
                else -> false
            }
            if (!understood) {
                throw InputException(
                    "first:$setting is not understood; write first, first:threshold=P with P from 0 to 1, or first:skip=N " +
                        "with N up to $most.",
                )
            }
            return { First(bundle.manifest, routers, threshold, skip) }
        }
    }
}

/**
 * The routers of a bundle: for each of [units] the weights of the stream, divided by its root mean square, and the bias of a
 * logit [H + 1]. An infinite bias keeps a unit always: it is not among these.
 */
internal class Routers private constructor(val units: List<Int>, val weights: List<FloatArray>) {
    companion object {
        /** Those of a bundle's units that can be left out; InputException where it has none. */
        fun read(bundle: Bundle, units: List<Int>): Routers {
            val manifest = bundle.manifest
            val name = manifest.routers
                ?: throw InputException("${manifest.name} has no routers, which the policy first needs; edge tune trains them.")
            val file = bundle.file(name)
            val array = try {
                Npy.read(readSmall(file, MOST_BYTES))
            } catch (e: IOException) {
                throw BundleException("$file cannot be read as routers: ${e.message}", e)
            }
            val wanted = listOf(units.size, manifest.dims.hiddenSize + 1)
            if (array.type != Npy.FLOAT32 || array.shape != wanted) {
                throw BundleException(
                    "$file holds routers of another model: ${array.type} of shape ${array.shape.shown()}, not " +
                        "${Npy.FLOAT32} of ${wanted.shown()}.",
                )
            }
            val rows = units.indices.map { FloatArray(wanted[1]).also(array.values::get) }
            val routed = units.indices.filter { rows[it].last().isFinite() }
            return Routers(routed.map(units::get), routed.map(rows::get))
        }

        private const val MOST_BYTES = 1 shl 26

        private fun List<Int>.shown() = joinToString(prefix = "(", postfix = ")")
    }
}
