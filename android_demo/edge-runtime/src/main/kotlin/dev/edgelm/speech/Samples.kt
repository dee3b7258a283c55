package dev.edgelm.speech

import dev.edgelm.InputException
import java.nio.ShortBuffer
import java.util.Locale
import kotlin.math.abs

/** Mono sound in memory, which windows read as floats from -1 to 1: a long recording is not copied. */
internal abstract class Samples(val size: Int) {
    /** Write [count] samples from [from] on into the beginning of [into]. */
    abstract fun read(from: Int, count: Int, into: FloatArray)
}

internal class FloatSamples(private val pcm: FloatArray) : Samples(pcm.size) {
    override fun read(from: Int, count: Int, into: FloatArray) {
        pcm.copyInto(into, 0, from, from + count)
    }

    /** InputException at a sample that is no number, or as loud as only damage is. */
    fun check(rate: Int) {
        val bad = pcm.indices.firstOrNull { !(abs(pcm[it]) < LOUDEST) } ?: return
        val where = "sample %,d, at %.2f s,".format(Locale.ROOT, bad, bad / rate.toDouble())
        throw InputException("The audio is damaged: $where is ${pcm[bad]} and no loudness.")
    }

    private companion object {
        const val LOUDEST = 1e9f // some write 16-bit values as floats; beyond this is damage
    }
}

internal class ShortSamples(private val pcm: ShortBuffer) : Samples(pcm.limit()) {
    override fun read(from: Int, count: Int, into: FloatArray) {
        for (i in 0 until count) into[i] = pcm.get(from + i) / FULL
    }

    private companion object {
        const val FULL = 32768f
    }
}
