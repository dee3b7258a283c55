package dev.edgelm.engine

import dev.edgelm.InputException
import java.nio.ByteBuffer
import java.nio.ByteOrder

internal val android = System.getProperty("java.vm.name") == "Dalvik"

/**
 * Memory outside the Java heap, for keys and values.
 *
 * On Android `ByteBuffer.allocateDirect` is an array in the heap, whose limit ends an app that holds a long chat, so
 * there it is shared memory that nobody shares.
 */
internal object Memory {
    /** Zeroed bytes in the machine's order; InputException where there are not so many. */
    fun allocate(bytes: Long): ByteBuffer {
        if (bytes > Int.MAX_VALUE) throw InputException("A layer's keys for so many tokens do not fit; ask for fewer.")
        try {
            val made = if (android) shared(bytes.toInt()) else ByteBuffer.allocateDirect(bytes.toInt())
            return made.order(ByteOrder.nativeOrder())
        } catch (_: OutOfMemoryError) {
            throw InputException("There is no memory for ${bytes / 1_000_000} MB of keys; ask for a smaller context.")
        }
    }

    /** Hand memory back, where that does not wait for the garbage collector. */
    fun free(buffer: ByteBuffer) {
        if (android) sharedMemory.getMethod("unmap", ByteBuffer::class.java).invoke(null, buffer)
    }

    /** `android.os.SharedMemory` (Android 8.1), by name: this library has no class of Android's. */
    private val sharedMemory by lazy { Class.forName("android.os.SharedMemory") }

    private fun shared(bytes: Int): ByteBuffer {
        val create = sharedMemory.getMethod("create", String::class.java, Int::class.javaPrimitiveType)
        val memory = create.invoke(null, null, bytes) as AutoCloseable
        return memory.use { sharedMemory.getMethod("mapReadWrite").invoke(it) as ByteBuffer }
    }
}
