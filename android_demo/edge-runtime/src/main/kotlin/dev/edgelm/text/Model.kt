package dev.edgelm.text

/** Finds the tokens of a piece of text that the pre-tokenizer made. */
internal interface Model {
    val pieces: Pieces

    /** As the library counts them: for ids that added tokens get, and for the size of the whole vocabulary. */
    val size: Int

    fun encode(word: String): IntArray

    /** As [encode], of what people typed: the tokens [barred] are no pieces of it. */
    fun encodePlain(word: String, barred: Set<Int>): IntArray = encode(word)
}

/** Ids of the pieces for bytes, `<0x00>` to `<0xFF>`; -1 where the vocabulary has none. */
internal fun bytePieces(pieces: Pieces): IntArray =
    IntArray(256) { pieces.id("<0x" + HEX[it shr 4] + HEX[it and 15] + ">") }

private const val HEX = "0123456789ABCDEF"

/** Words that came lately, with their ids. Threads may share it: an entry never changes. */
internal class WordCache(private val find: (String) -> IntArray) {
    private class Entry(val word: String, val ids: IntArray)

    private val entries = arrayOfNulls<Entry>(SLOTS)

    fun ids(word: String): IntArray {
        if (word.length > LONGEST) return find(word)
        val slot = word.hashCode().let { it xor (it ushr 13) } and SLOTS - 1
        entries[slot]?.let { if (it.word == word) return it.ids }
        return find(word).also { entries[slot] = Entry(word, it) }
    }

    private companion object {
        const val SLOTS = 1 shl 13 // about 1 MB when full
        const val LONGEST = 48
    }
}
