package dev.edgelm.text

import dev.edgelm.BundleException
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * SentencePiece's compiled character map: a double-array trie over UTF-8 (darts-clone), and texts that end with a zero
 * byte. [blob]: four bytes with the size of the trie, the trie, the texts.
 */
internal class CharacterMap(blob: ByteArray) : Normalizer {
    private val units: IntArray
    private val texts: ByteArray

    init {
        val buffer = ByteBuffer.wrap(blob).order(ByteOrder.LITTLE_ENDIAN)
        val size = if (blob.size < 4) -1 else buffer.int
        if (size < 4 || size > blob.size - 4) throw damaged()
        units = IntArray(size / 4) { buffer.int }
        texts = blob.copyOfRange(4 + size, blob.size)
    }

    override fun normalize(span: Span): Span {
        val text = span.text
        val result = StringBuilder(text.length + 16)
        var first = 0
        var at = 0
        while (at < text.length) {
            val end = Clusters.end(text, at)
            append(text, at, end, result)
            if (end <= span.first || at == 0 && span.first > 0) first = result.length
            at = end
        }
        return if (result.contentEquals(text)) span else Span(result.toString(), first)
    }

    /** A character as readers see it is mapped as one where it is short, else each of its code points. */
    private fun append(text: String, from: Int, to: Int, result: StringBuilder) {
        if (size(text, from, to) < SHORT) mapped(text, from, to)?.let {
            result.append(it)
            return
        }
        var at = from
        while (at < to) {
            val end = at + Character.charCount(text.codePointAt(at))
            val mapped = mapped(text, at, end)
            if (mapped != null) result.append(mapped) else result.append(text, at, end)
            at = end
        }
    }

    private fun size(text: String, from: Int, to: Int): Int {
        var size = 0
        var at = from
        while (at < to && size < SHORT) {
            val code = text.codePointAt(at)
            size += Utf8.size(code)
            at += Character.charCount(code)
        }
        return size
    }

    /** The entry of the shortest beginning of a part that has one, which stands for all of the part. */
    private fun mapped(text: String, from: Int, to: Int): String? {
        var node = children(unit(0))
        var at = from
        while (at < to) {
            val code = text.codePointAt(at)
            for (place in 0 until Utf8.size(code)) {
                val byte = Utf8.byte(code, place)
                // A character zero ends the walk, as a zero byte ends an entry.
                if (byte == 0) return null
                node = node xor byte
                val unit = unit(node)
                if (unit and 0x800000ff.toInt() != byte) return null
                node = node xor children(unit)
                if (unit ushr 8 and 1 == 1) return entry(unit(node) and 0x7fffffff)
            }
            at += Character.charCount(code)
        }
        return null
    }

    private fun entry(start: Int): String {
        var end = start
        while (end < texts.size && texts[end] != 0.toByte()) end++
        if (start < 0 || end >= texts.size) throw damaged()
        return String(texts, start, end - start, Charsets.UTF_8)
    }

    private fun unit(at: Int): Int = if (at in units.indices) units[at] else throw damaged()

    /** Where the children of a node are, from the node on. */
    private fun children(unit: Int): Int = (unit ushr 10) shl (unit and 0x200 ushr 6)

    private fun damaged() = BundleException("The character map of the tokenizer is damaged.")

    private companion object {
        const val SHORT = 6 // bytes
    }
}
