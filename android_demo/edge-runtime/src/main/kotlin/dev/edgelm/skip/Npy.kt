package dev.edgelm.skip

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer

/** An array as numpy writes it, row by row; [values] are there where it is one of [FLOAT32]. */
internal class Npy private constructor(val type: String, val shape: List<Int>, val values: FloatBuffer) {
    companion object {
        const val FLOAT32 = "float32"
        private const val LITTLE_FLOAT32 = "<f4"
        private val MAGIC = "\u0093NUMPY".toByteArray(Charsets.ISO_8859_1)
        private val FIELDS = Regex("""'descr': *'([^']*)'.*'fortran_order': *False.*'shape': *\(([0-9, ]*)\)""")

        /** The array of a file's [bytes]; IOException where it is none, or one in another order. */
        fun read(bytes: ByteArray): Npy {
            val from = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
            val start = if (bytes.size > 6 && bytes[6] > 1) 12 else 10 // of the header, after its length
            if (bytes.size < start || !bytes.copyOf(MAGIC.size).contentEquals(MAGIC)) throw IOException("it is no array of numpy.")
            val length = if (start == 12) from.getInt(8) else from.getShort(8).toInt() and 0xffff
            if (length < 0 || length > bytes.size - start) throw IOException("its header is cut off.")
            val header = String(bytes, start, length, Charsets.ISO_8859_1)
            val fields = FIELDS.find(header) ?: throw IOException("its header is not that of rows.")
            val (type, sizes) = fields.destructured
            val shape = sizes.split(',').map { it.trim() }.filter { it.isNotEmpty() }
                .map { it.toIntOrNull() ?: throw IOException("its header is damaged.") }
            from.position(start + length)
            if (type != LITTLE_FLOAT32) return Npy(type, shape, FloatBuffer.allocate(0))
            val values = from.slice().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
            if (shape.fold(1L) { all, size -> all * size } > values.capacity()) throw IOException("its values are cut off.")
            return Npy(FLOAT32, shape, values)
        }
    }
}
