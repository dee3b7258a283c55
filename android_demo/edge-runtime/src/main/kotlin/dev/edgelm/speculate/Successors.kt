package dev.edgelm.speculate

import dev.edgelm.BundleException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.readSmall
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.LongBuffer

/**
 * A bundle's table of what the model usually says after the last three, two or one tokens: a hash table in a file, used
 * as it is. docs/reference/bundle-format.md says what a slot holds.
 *
 * @throws BundleException the file cannot be read, or is no such table.
 */
internal class Successors(bundle: Bundle) {
    private val slots: LongBuffer
    private val mask: Int
    private val shift: Int

    init {
        val path = bundle.file(FILE)
        val content = try {
            ByteBuffer.wrap(readSmall(path, HEAD + (SLOT shl MOST_BITS).toInt()))
        } catch (e: IOException) {
            throw BundleException("$path cannot be read: ${e.message}.", e)
        }
        content.order(ByteOrder.LITTLE_ENDIAN)
        val size = content.limit()
        val bits = if (size < HEAD) 0 else content.getInt(0)
        if (bits !in 1..MOST_BITS || content.getInt(4) != LEVELS || size.toLong() != HEAD + (SLOT shl bits)) {
            throw BundleException("$path is not a table of successors; export or copy the bundle again.")
        }
        content.position(HEAD)
        slots = content.slice().order(ByteOrder.LITTLE_ENDIAN).asLongBuffer()
        mask = (1 shl bits) - 1
        shift = 64 - bits
        if (!valid(bundle.manifest.dims.vocabSize)) {
            throw BundleException("$path is damaged, or names tokens that the model does not have; export the bundle again.")
        }
    }

    private fun valid(vocab: Int): Boolean {
        var free = false // without a free slot a search would not end
        for (i in 0..mask) {
            val held = slots.get(i)
            if (held == 0L) free = true else if (held.token >= vocab || (held.above - 1) !in 0 until LEVELS) return false
        }
        return free
    }

    /** The [token] that follows the longest context known, with its [level]; [NONE] where none is known. */
    fun after(third: Int, second: Int, last: Int): Int {
        var found = find(mixed(third, second, last))
        if (found == NONE) found = find(mixed(NONE, second, last))
        if (found == NONE) found = find(mixed(NONE, NONE, last))
        return found
    }

    private fun find(mixed: Long): Int {
        val check = mixed and 0xFFFFFFFFL
        var slot = (mixed ushr shift).toInt()
        while (true) {
            val held = slots.get(slot)
            if (held == 0L) return NONE
            if (held ushr 32 == check) return held.token or ((held.above - 1) shl 24)
            slot = (slot + 1) and mask
        }
    }

    companion object {
        const val FILE = "successors.bin"
        const val NONE = -1 // instead of a missing token
        private const val HEAD = 8 // bytes: the logarithm of the number of slots, and the number of levels
        private const val SLOT = 8L // bytes
        private const val MOST_BITS = 24 // 128 MiB: exports write a thousandth of that
        private const val LEVELS = 12
        private const val MULTIPLIER = -0x61C8864680B583EBL // 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)

        private val Long.token get() = (this and 0xFFFFFF).toInt()
        private val Long.above get() = (this shr 24).toInt() and 0xFF

        fun token(found: Int): Int = found and 0xFFFFFF

        fun level(found: Int): Int = found ushr 24

        /** 64 bits of a context of three tokens; its upper bits are the slot to begin with, the lower 32 its check. */
        private fun mixed(third: Int, second: Int, last: Int): Long =
            (((third + 1) * MULTIPLIER + second + 1) * MULTIPLIER + last + 1) * MULTIPLIER
    }
}
