package dev.edgelm.engine

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.bundle.Bundle
import java.nio.ByteBuffer

/**
 * What the decoder's cross-attention reads: for each layer a key and a value over [length] rows of the encoder, by their
 * names in the graphs.
 */
internal class Cross(val length: Int, val tensors: Map<String, OnnxTensor>) : AutoCloseable {
    override fun close() = tensors.values.forEach { it.close() }
}

/**
 * The encoder of an encoder-decoder, and for speech the frontend: an input goes in once, keys and values for every layer
 * of the decoder come out. What comes out is overwritten by the next input of the same [Room].
 */
internal class Encoder(private val bundle: Bundle, private val environment: OrtEnvironment) : AutoCloseable {
    private val manifest = bundle.manifest
    private val dims = manifest.encoder!!
    private val layers = manifest.cross!!.layers
    private val session: OrtSession = Ort.open(environment, bundle, "encoder")
    private val frontend: OrtSession? = manifest.speech?.let { Ort.open(environment, bundle, "frontend") }

    /** Memory for keys and values of one input at a time; it grows to the longest. */
    class Room : AutoCloseable {
        internal var rows = 0
        internal var buffers: List<ByteBuffer> = emptyList()

        override fun close() {
            buffers.forEach(Memory::free)
            buffers = emptyList()
            rows = 0
        }
    }

    /** Encode a text's tokens, which the caller counted. */
    fun encodeText(ids: IntArray, room: Room): Cross {
        if (ids.size !in 1..dims.maxLength) {
            throw InputException(
                "The text has ${ids.size} tokens and this model's encoder takes 1 to ${dims.maxLength}; split it, for " +
                    "example into sentences.",
            )
        }
        val vocab = manifest.dims.vocabSize
        ids.firstOrNull { it !in 0 until vocab }?.let {
            throw InputException("The token $it is not one of the $vocab of ${manifest.name}; export it again.")
        }
        val given = direct(8 * ids.size).asLongBuffer()
        for (i in ids.indices) given.put(i, ids[i].toLong())
        val tensor = OnnxTensor.createTensor(environment, given, longArrayOf(1, ids.size.toLong()))
        return encode("input_ids", tensor, ids.size, room)
    }

    /**
     * Encode [count] mono samples of [pcm], from [start] on, with silence up to a [window] of samples, which is less than
     * the bundle's only where its encoder takes any length.
     */
    fun encodeAudio(pcm: FloatArray, start: Int, count: Int, room: Room, window: Int = manifest.speech!!.windowSamples): Cross {
        require(count <= window) { "a window holds $window samples, not $count" }
        val padded = direct(FLOAT * window).asFloatBuffer()
        padded.put(pcm, start, count).position(0)
        val length = (dims.maxLength.toLong() * window / manifest.speech!!.windowSamples).toInt()
        return failing {
            OnnxTensor.createTensor(environment, padded, longArrayOf(1, window.toLong())).use { samples ->
                frontend!!.run(mapOf("pcm" to samples)).use { made ->
                    encode("input_features", made.get(0) as OnnxTensor, length, room, close = false)
                }
            }
        }
    }

    private fun encode(name: String, input: OnnxTensor, length: Int, room: Room, close: Boolean = true): Cross {
        if (room.rows < length) {
            room.close()
            room.buffers = layers.flatMap { layer ->
                List(2) { Memory.allocate(length.toLong() * layer.heads * layer.headDim * FLOAT) }
            }
            room.rows = length
        }
        val tensors = LinkedHashMap<String, OnnxTensor>()
        for ((i, layer) in layers.withIndex()) {
            val (heads, rows, dim) = longArrayOf(layer.heads.toLong(), length.toLong(), layer.headDim.toLong())
            val key = longArrayOf(1, heads, rows, dim)
            val value = if (dims.valuesTransposed) longArrayOf(1, heads, dim, rows) else key
            tensors["cross.$i.key"] = view(room.buffers[2 * i], key)
            tensors["cross.$i.value"] = view(room.buffers[2 * i + 1], value)
        }
        val cross = Cross(length, tensors)
        try {
            failing { session.run(mapOf(name to input), emptySet(), tensors).close() }
        } catch (e: EdgeException) {
            cross.close()
            throw e
        } finally {
            if (close) input.close()
        }
        return cross
    }

    private fun view(buffer: ByteBuffer, shape: LongArray): OnnxTensor {
        val part = buffer.duplicate().order(buffer.order())
        part.limit(FLOAT * shape.reduce(Long::times).toInt())
        return OnnxTensor.createTensor(environment, part.asFloatBuffer(), shape)
    }

    private inline fun <T> failing(action: () -> T): T = try {
        action()
    } catch (e: OrtException) {
        throw EdgeException("${manifest.name} failed to compute: ${e.message}", e)
    }

    override fun close() {
        session.close()
        frontend?.close()
    }
}
