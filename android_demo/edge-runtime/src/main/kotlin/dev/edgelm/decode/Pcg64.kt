package dev.edgelm.decode

/**
 * The generator that numpy's `default_rng(seed)` is: PCG64 (O'Neill 2014, XSL-RR over 128 bits), seeded by
 * SeedSequence. The same seed draws the same numbers on every host; docs/reference/hosts.md states it.
 */
internal class Pcg64(seed: Long) {
    private var high = 0L
    private var low = 0L
    private val stepHigh: Long
    private val stepLow: Long

    init {
        val words = seedWords(seed)
        // The sequence number is doubled and made odd.
        stepHigh = (words[2] shl 1) or (words[3] ushr 63)
        stepLow = (words[3] shl 1) or 1
        advance()
        add(words[0], words[1])
        advance()
    }

    /** The next number in [0, 1), of 53 bits. */
    fun nextDouble(): Double {
        advance()
        val bits = java.lang.Long.rotateRight(high xor low, (high ushr 58).toInt())
        return (bits ushr 11) * (1.0 / (1L shl 53))
    }

    /** state = state * multiplier + step, of 128 bits. */
    private fun advance() {
        val product = low * MULTIPLIER_LOW
        high = unsignedHigh(low, MULTIPLIER_LOW) + high * MULTIPLIER_LOW + low * MULTIPLIER_HIGH
        low = product
        add(stepHigh, stepLow)
    }

    private fun add(addedHigh: Long, addedLow: Long) {
        low += addedLow
        high += addedHigh + if (java.lang.Long.compareUnsigned(low, addedLow) < 0) 1 else 0
    }

    private companion object {
        const val MULTIPLIER_HIGH = 2549297995355413924L
        const val MULTIPLIER_LOW = 4865540595714422341L
        const val HALF = 0xFFFFFFFFL

        /** The upper 64 bits of a product of two unsigned numbers. */
        fun unsignedHigh(a: Long, b: Long): Long {
            val (aHigh, aLow) = a.ushr(32) to (a and HALF)
            val (bHigh, bLow) = b.ushr(32) to (b and HALF)
            val first = aHigh * bLow + (aLow * bLow).ushr(32)
            val second = aLow * bHigh + (first and HALF)
            return aHigh * bHigh + first.ushr(32) + second.ushr(32)
        }

        /** SeedSequence(seed).generate_state(4, uint64). */
        fun seedWords(seed: Long): LongArray {
            var constant = 0x43b0d7e5
            fun hash(value: Int): Int {
                var mixed = value xor constant
                constant *= 0x931e8875.toInt()
                mixed *= constant
                return mixed xor mixed.ushr(16)
            }

            fun mix(x: Int, y: Int): Int {
                val mixed = 0xca01f9dd.toInt() * x - 0x4973f715 * y
                return mixed xor mixed.ushr(16)
            }

            val pool = IntArray(4)
            val entropy = intArrayOf(seed.toInt(), (seed ushr 32).toInt(), 0, 0)
            for (i in pool.indices) pool[i] = hash(entropy[i])
            for (from in pool.indices) {
                for (to in pool.indices) if (from != to) pool[to] = mix(pool[to], hash(pool[from]))
            }
            constant = 0x8b51f9dd.toInt()
            val halves = LongArray(8) { i ->
                var data = pool[i % 4] xor constant
                constant *= 0x58f38ded
                data *= constant
                (data xor data.ushr(16)).toLong() and HALF
            }
            return LongArray(4) { halves[2 * it] or (halves[2 * it + 1] shl 32) }
        }
    }
}
