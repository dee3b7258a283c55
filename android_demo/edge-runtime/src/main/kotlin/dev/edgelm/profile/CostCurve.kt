package dev.edgelm.profile

import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import java.io.File
import java.io.IOException

/**
 * What a step of so many tokens costs after a context, in milliseconds: linear between the measured [points], one or more,
 * and after the last ones as steep as between the last two.
 */
internal class CostCurve(points: List<StepCost>) {
    private val contexts = points.map { it.context }.distinct().sorted().toIntArray()
    private val lines = contexts.map { context -> points.filter { it.context == context }.sortedBy { it.size } }
    private val sizes = lines.map { line -> line.map { it.size }.toIntArray() }
    private val times = lines.map { line -> line.map { it.ms }.toDoubleArray() }

    fun ms(size: Int, context: Int): Double =
        if (contexts.size == 1) ofSize(0, size) else onLines(contexts, context) { ofSize(it, size) }

    /** The cost at one measured context. */
    private fun ofSize(line: Int, size: Int): Double {
        val cost = times[line]
        if (cost.size == 1) return cost[0] * maxOf(1.0, size.toDouble() / sizes[line][0]) // more tokens cost no more than that
        return onLines(sizes[line], size) { cost[it] }
    }

    /** The cost at a place, from those at two or more ascending places; after the last one it does not fall. */
    private inline fun onLines(places: IntArray, wanted: Int, cost: (Int) -> Double): Double {
        var at = 1
        while (at < places.size - 1 && places[at] < wanted) at++
        val low = cost(at - 1)
        val high = cost(at)
        val share = (wanted - places[at - 1]).toDouble() / (places[at] - places[at - 1])
        return if (share <= 1) low + (high - low) * maxOf(0.0, share) else high + maxOf(0.0, high - low) * (share - 1)
    }

    companion object {
        /** The profile in a file; InputException where it is none. */
        fun read(file: File): Profile {
            val profile = try {
                Profile.fromJson(file.readText())
            } catch (e: IOException) {
                throw InputException("The profile $file cannot be read: ${e.message}.")
            } catch (_: IllegalArgumentException) { // no JSON, or another document
                throw InputException("$file is not a profile; measure the model again.")
            }
            val points = profile.curve + profile.curveInt8
            if (points.any { it.size < 1 || it.context < 0 || !(it.ms > 0) || it.ms.isInfinite() }) {
                throw InputException("The profile $file has a step that takes no time; measure the model again.")
            }
            return profile
        }

        /**
         * The curve in a [profile] of a bundle over float or int8 keys; null where it is of another bundle, version of
         * onnxruntime or number of threads or cores, or has no such curve.
         */
        fun of(profile: Profile, bundle: Bundle, int8: Boolean): CostCurve? {
            val points = if (int8) profile.curveInt8 else profile.curve
            val here = with(profile.device) { DeviceName(name, cpu, os, memoryBytes).measured() }
            val own = profile.bundle.sha256 == bundle.manifestSha256() && profile.device == here
            return if (own && points.any { it.size == 1 }) CostCurve(points) else null
        }
    }
}
