package dev.edgelm.skip

import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.Segment
import dev.edgelm.engine.Engine

/** Which of the units that the manifest's `segments` list run in a step: the first and the last one always do. */
internal typealias Route = BooleanArray

/**
 * Says which units run in the steps of one cache, whose prompt's tokens are those below `SegmentedCache.prompt`.
 */
internal abstract class SkipPolicy {
    /** The units, in order, of which [observe] wants to know what they read of the prompt. */
    open val watched: List<Int> = emptyList()

    /** Whether all tokens, of prompts and answers, run through the same units. */
    open val uniform: Boolean = false

    /** The units that the next tokens run through. */
    abstract fun route(cache: SegmentedCache): Route

    /** How many tokens from the next one on run through the same units, at least. */
    open fun maxExactStep(cache: SegmentedCache): Int = Int.MAX_VALUE

    /**
     * The residual stream [S, H] that a [unit] read of a prompt's tokens from the one at [start] on, told of those that are
     * [watched] in their order.
     */
    open fun observe(start: Int, unit: Int, stream: Stream) = Unit

    companion object {
        const val OFF = "off"
        private val MAKERS = mapOf<String, (Bundle, String) -> () -> SkipPolicy>(
            "ffn" to FeedForward::maker,
            "first" to First::maker,
            "skipdecode" to SkipDecode::maker,
            "unified" to ::unified,
        )

        /**
         * What makes the policy that [asked] names, such as `unified:0.2`, for each cache of a bundle; null for `off`.
         *
         * @throws InputException there is no such policy, its setting is out of range, or the bundle lacks what it needs.
         * @throws dev.edgelm.BundleException its routers cannot be used.
         */
        fun maker(asked: String, bundle: Bundle): (() -> SkipPolicy)? {
            if (asked == OFF) return null
            val make = MAKERS[asked.substringBefore(':')]
                ?: throw InputException("There is no skip policy '$asked'; choose one of $OFF, ${MAKERS.keys.joinToString()}.")
            return make(bundle, asked.substringAfter(':', ""))
        }
    }
}

/** Values [size, hidden] of some tokens, one after the other. */
internal class Stream(val values: FloatArray, val hidden: Int) {
    val size: Int get() = values.size / hidden
}

/** A policy whose every step runs through the same units. */
internal class FixedRoute(private val route: Route) : SkipPolicy() {
    override val uniform = true

    override fun route(cache: SegmentedCache) = route
}

/** No policy of its own: everything runs. */
internal fun allLayers(manifest: Manifest): SkipPolicy = FixedRoute(routeWithout(emptyList(), manifest))

/** The route through all units but some. */
internal fun routeWithout(units: Collection<Int>, manifest: Manifest): Route = Route(manifest.segments.size) { it !in units }

/** The smallest sets of units by which whole layers can be left out: both halves of a layer. */
internal fun skippable(segments: List<Segment>): List<List<Int>> =
    segments.indices.filter { segments[it].part == "layers" || segments[it].part == "attention" }
        .map { if (segments[it].part == "layers") listOf(it) else listOf(it, it + 1) }

/** The units of these [parts]; InputException where the bundle has none, or other ones. */
internal fun middle(bundle: Bundle, parts: Set<String>, what: String): List<Int> {
    val manifest = bundle.manifest
    val name = manifest.name
    if (manifest.segments.isEmpty()) {
        throw InputException("$name has no segments, so nothing can be skipped; export it with --segments N or ffn.")
    }
    if (manifest.graph(Engine.SKIP) == null) {
        throw InputException("The segments of $name are files as edge wrote them earlier; export the model again.")
    }
    val found = manifest.segments.indices.filter { manifest.segments[it].part in parts }
    if (found.isEmpty()) {
        val other = if ("feed_forward" in parts) "--segments ffn" else "--segments N"
        throw InputException("$what skips other parts than the segments of $name; export it with $other.")
    }
    return found
}

/** The share of layers that a [setting] asks to leave out; InputException where it is no number from 0 to below 1. */
internal fun share(setting: String, example: String): Double =
    number(setting)?.takeIf { it >= 0 && it < 1 }
        ?: throw InputException("'$setting' is no share of the layers, from 0 to below 1; write it like $example.")

private val NUMBER = Regex("""[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?""")

internal fun number(text: String): Double? = text.takeIf(NUMBER::matches)?.toDouble()

internal val LAYERS = setOf("layers")
internal val LAYERS_OR_HALVES = setOf("layers", "attention")
internal val FEED_FORWARD = setOf("feed_forward")
