package dev.edgelm.text

import dev.edgelm.BundleException
import kotlinx.serialization.DeserializationStrategy
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.builtins.MapSerializer
import kotlinx.serialization.builtins.serializer
import kotlinx.serialization.descriptors.SerialDescriptor
import kotlinx.serialization.descriptors.buildClassSerialDescriptor
import kotlinx.serialization.encoding.CompositeDecoder
import kotlinx.serialization.encoding.Decoder as Input
import kotlinx.serialization.encoding.decodeStructure
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.doubleOrNull

/** Takes an object's known fields, each with its own reader. */
private class Fields(name: String, private val readers: Map<String, DeserializationStrategy<Unit>>) :
    DeserializationStrategy<Unit> {
    override val descriptor: SerialDescriptor = buildClassSerialDescriptor(name) {
        for ((key, reader) in readers) element(key, reader.descriptor)
    }

    override fun deserialize(decoder: Input) = decoder.decodeStructure(descriptor) {
        val missing = readers.keys.toMutableSet()
        while (true) {
            val at = decodeElementIndex(descriptor)
            if (at == CompositeDecoder.DECODE_DONE) break
            val key = descriptor.getElementName(at)
            decodeSerializableElement(descriptor, at, readers.getValue(key))
            missing -= key
        }
        if (missing.isNotEmpty()) throw BundleException("it has no ${missing.first()}")
    }
}

/** Gives the elements of a list or an object out as they come. */
private class Each(
    override val descriptor: SerialDescriptor,
    private val read: CompositeDecoder.(SerialDescriptor, Int) -> Unit,
) : DeserializationStrategy<Unit> {
    override fun deserialize(decoder: Input) = decoder.decodeStructure(descriptor) {
        while (true) {
            val at = decodeElementIndex(descriptor)
            if (at == CompositeDecoder.DECODE_DONE) break
            read(descriptor, at)
        }
    }
}

private val element = JsonElement.serializer()
private val listOfElements = ListSerializer(element).descriptor

/** The vocabulary and the merges of a BPE model, in either order. */
internal class BpeReader {
    val pieces = Pieces.Builder()
    private val texts = Pieces.Builder() // of merges: left, right, left, right

    private val vocabulary = Each(MapSerializer(String.serializer(), Int.serializer()).descriptor) { descriptor, at ->
        val text = decodeStringElement(descriptor, at)
        val id = decodeIntElement(descriptor, decodeElementIndex(descriptor))
        if (id !in 0..MAX_ID) throw BundleException("its token $text has the id $id")
        pieces.add(text, id)
    }

    private val merges = Each(listOfElements) { descriptor, at ->
        val merge = decodeSerializableElement(descriptor, at, element)
        val pair = if (merge is JsonArray) merge.map { it.string() } else merge.string().split(' ')
        // What a merges.txt begins with is in some files, too.
        if (merge is JsonArray || !merge.string().startsWith("#version")) {
            if (pair.size != 2) throw BundleException("its merge $merge is not of two tokens")
            for (text in pair) texts.add(text, texts.count)
        }
    }

    val file: DeserializationStrategy<Unit> =
        Fields("File", mapOf("model" to Fields("Model", mapOf("vocab" to vocabulary, "merges" to merges))))

    fun merges(pieces: Pieces): Merges {
        val result = Merges(texts.count / 2)
        for (rank in 0 until texts.count / 2) {
            val left = id(pieces, texts[2 * rank])
            val right = id(pieces, texts[2 * rank + 1])
            result.put(left, right, rank, id(pieces, texts[2 * rank] + texts[2 * rank + 1]))
        }
        return result
    }

    private fun id(pieces: Pieces, text: String): Int {
        val id = pieces.id(text)
        if (id < 0) throw BundleException("its merges have the token $text, which is not in its vocabulary")
        return id
    }

    private companion object {
        const val MAX_ID = 1 shl 24 // there is a table with a place for each id
    }
}

/** The pieces of a unigram model and their scores. */
internal class UnigramReader {
    val pieces = Pieces.Builder()
    var scores = DoubleArray(1024)
        private set

    private val vocabulary = Each(listOfElements) { descriptor, at ->
        val piece = decodeSerializableElement(descriptor, at, element)
        if (piece !is JsonArray || piece.size != 2) throw BundleException("its piece $piece is not a text and a score")
        if (pieces.count == scores.size) scores = scores.copyOf(2 * scores.size)
        val score = (piece[1] as? JsonPrimitive)?.doubleOrNull
        scores[pieces.count] = score ?: throw BundleException("its piece $piece has no score")
        pieces.add(piece[0].string(), pieces.count)
    }

    val file: DeserializationStrategy<Unit> =
        Fields("File", mapOf("model" to Fields("Model", mapOf("vocab" to vocabulary))))
}

internal fun JsonElement.string(): String =
    (this as? JsonPrimitive)?.takeIf { it.isString }?.content ?: throw BundleException("$this is not a text")
