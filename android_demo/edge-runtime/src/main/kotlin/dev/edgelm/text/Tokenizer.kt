package dev.edgelm.text

import dev.edgelm.BundleException
import dev.edgelm.InputException
import java.io.File
import java.io.IOException

/**
 * Text to token ids and back, as the `tokenizers` library does it without the special tokens around a text. Threads may
 * share it.
 */
class Tokenizer internal constructor(
    private val normalizer: Normalizer?,
    private val preTokenizer: PreTokenizer?,
    private val model: Model,
    private val decoder: Decoder?,
    addedTokens: List<AddedToken>,
) {
    private val added = AddedTokens(addedTokens, model, normalizer)

    /** Of the vocabulary with added tokens. */
    val size: Int get() = added.size

    /** Ids of special tokens, which have no text. */
    val special: Set<Int> get() = added.special

    /** The added tokens as people may write them, and which of them are special. */
    internal val addedTexts: List<String> get() = added.texts

    internal fun isSpecial(text: String): Boolean = added.isSpecial(text)

    /** Whether texts are split at a token. */
    internal fun isAdded(id: Int): Boolean = added.text(id) != null

    /**
     * Token ids of a text, in which special tokens are recognised, but for those that [Controls] has hidden;
     * InputException where it is not valid Unicode.
     */
    fun encode(text: String): IntArray = bounded {
        if (!Utf8.isValid(text)) throw InputException("The text is not valid Unicode.")
        val ids = Ids()
        val isHiding = Controls.MARK in text
        for (each in added.split(text)) {
            val span = if (isHiding && each.token < 0) each.without(Controls.MARK) else each
            if (span.token >= 0) {
                ids.add(span.token)
            } else if (preTokenizer == null) {
                ids.addAll(ids(span.text, isHiding))
            } else {
                val words = Words()
                preTokenizer.split(span, words)
                for (word in words.spans) ids.addAll(ids(word.text, isHiding))
            }
        }
        ids.toArray()
    }

    private fun ids(word: String, isHiding: Boolean) =
        if (isHiding) model.encodePlain(word, added.special) else model.encode(word)

    /** The text of token ids; special tokens have none, invalid UTF-8 becomes U+FFFD. */
    fun decode(ids: IntArray): String = bounded {
        val texts = ids.map { token(it) }.filter { it != null && !added.isSpecial(it) }.filterNotNull()
        decoder?.decode(texts)?.joinToString("") ?: texts.joinToString(" ")
    }

    /** What [action] makes, or a sentence where a tokenizer's patterns and texts take too much for it. */
    private inline fun <T> bounded(action: () -> T): T = try {
        action()
    } catch (e: StackOverflowError) {
        throw BundleException("The bundle's tokenizer nests too deeply in this text; give it a shorter one.", e)
    } catch (e: OutOfMemoryError) {
        throw BundleException("The bundle's tokenizer takes more memory for this text than there is; give it a shorter one.", e)
    } catch (e: BundleException) {
        throw BundleException("The bundle's tokenizer cannot be used: ${e.message}; export the model again.", e)
    }

    /** A token as the vocabulary writes it; null where there is none. */
    fun token(id: Int): String? = added.text(id) ?: model.pieces.text(id)

    companion object {
        /** BundleException where the file cannot be read, or has parts that are not known here. */
        fun read(file: File): Tokenizer = try {
            TokenizerFile(file).read()
        } catch (e: IOException) {
            throw damaged(file, e)
        } catch (e: IllegalArgumentException) { // of the JSON library
            throw damaged(file, e)
        } catch (e: StackOverflowError) { // parts within parts without end
            throw damaged(file, e)
        } catch (e: OutOfMemoryError) {
            throw damaged(file, e)
        } catch (e: BundleException) {
            throw damaged(file, e)
        }

        private fun damaged(file: File, cause: Throwable): BundleException {
            val message = cause.message ?: cause.javaClass.simpleName
            val reason = message.lineSequence().first().take(MAX_REASON).trimEnd('.')
            val sentence = "$file cannot be read as a tokenizer ($reason); export or copy the bundle again."
            return BundleException(sentence, cause)
        }

        private const val MAX_REASON = 300
    }
}
