package dev.edgelm.app.dictate

import java.io.File
import java.io.FileOutputStream
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.ShortBuffer
import java.nio.channels.FileChannel

/**
 * A recording in a file of 16-bit samples, the lower byte first. It grows on the disk and is mapped to be heard, so that an
 * hour takes no memory, and what was recorded outlives the process.
 */
class Recording(private val file: File) {
    val samples: Int get() = (file.length() / 2).toInt()

    /** Begin anew. Call [Writer.add] with the sound, then close it. */
    fun begin(): Writer {
        file.parentFile!!.mkdirs()
        file.delete() // not overwritten: it may still be mapped
        return Writer(FileOutputStream(file))
    }

    class Writer internal constructor(private val output: FileOutputStream) : AutoCloseable {
        var samples = 0
            private set

        fun add(chunk: ShortArray) {
            val bytes = ByteBuffer.allocate(2 * chunk.size).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asShortBuffer().put(chunk)
            output.write(bytes.array())
            samples += chunk.size
        }

        override fun close() = output.close()
    }

    /** All samples; pages of the file that the system can take back. */
    fun map(): ShortBuffer = RandomAccessFile(file, "r").use {
        it.channel.map(FileChannel.MapMode.READ_ONLY, 0, 2L * samples).order(ByteOrder.LITTLE_ENDIAN).asShortBuffer()
    }

    fun delete() {
        file.delete()
    }
}
