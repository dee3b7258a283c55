package dev.edgelm.text

import dev.edgelm.BundleException
import dev.edgelm.InputException
import java.io.File
import java.time.Duration
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTimeout
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

class TokenizerFileTest {
    @TempDir
    lateinit var folder: File

    private val bpe = """{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}"""
    private val unigram = """{"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5], ["ab", -2]]}"""

    private fun file(text: String) = File(folder, "tokenizer.json").apply { writeText(text) }

    private fun read(text: String): Tokenizer = Tokenizer.read(file(text))

    private fun bpeWith(option: String) = """{"model": ${bpe.replace("\"merges\"", "$option, \"merges\"")}}"""

    private fun assertRefused(reason: String, text: String) {
        val message = assertThrows(BundleException::class.java) { read(text) }.message.orEmpty()
        assertTrue(reason in message && message.endsWith("; export or copy the bundle again."), message)
    }

    @Test
    fun `merges come before the vocabulary or after it`() {
        val tokenizer = read("""{"model": {"merges": ["a b"], "vocab": {"a": 0, "b": 1, "ab": 7}}}""")
        assertArrayEquals(intArrayOf(7, 1), tokenizer.encode("abb"))
        assertEquals("ab", tokenizer.token(7))
        assertNull(tokenizer.token(3))
        assertNull(tokenizer.token(-1))
        assertEquals("ab b", tokenizer.decode(intArrayOf(7, 5, 1)))
    }

    @Test
    fun `a damaged file is refused`() {
        for (text in listOf("", "{", "[]", "null", "{}", """{"model": 1}""", """{"model": {}}""", "\u0000\u0001")) {
            assertRefused("cannot be read as a tokenizer", text)
        }
        val missing = File(folder, "missing.json")
        assertThrows(BundleException::class.java) { Tokenizer.read(missing) }
    }

    @Test
    fun `each beginning of a file is refused`() {
        val whole = """{"added_tokens": [], "normalizer": null, "model": $bpe}"""
        read(whole)
        for (length in whole.indices) assertRefused("", whole.take(length))
    }

    @Test
    fun `a vocabulary that does not fit together is refused`() {
        assertRefused("token c", """{"model": {"vocab": {"a": 0, "ac": 1}, "merges": [["a", "c"]]}}""")
        assertRefused("two tokens", """{"model": {"vocab": {"a": 0}, "merges": ["a a a"]}}""")
        assertRefused("id -1", """{"model": {"vocab": {"a": -1}, "merges": []}}""")
        assertRefused("no merges", """{"model": {"vocab": {"a": 0}}}""")
        assertRefused("unknown token 3", """{"model": ${unigram.replace("\"unk_id\": 0", "\"unk_id\": 3")}}""")
        assertRefused("a score", """{"model": {"type": "Unigram", "vocab": [["a"]]}}""")
    }

    @Test
    fun `parts that are not known are named`() {
        assertRefused("model WordPiece", """{"model": {"type": "WordPiece", "vocab": {}}}""")
        assertRefused("normalizer BertNormalizer", """{"normalizer": {"type": "BertNormalizer"}, "model": $bpe}""")
        assertRefused("pre-tokenizer Other", """{"pre_tokenizer": {"type": "Other"}, "model": $bpe}""")
        assertRefused("decoder CTC", """{"decoder": {"type": "CTC"}, "model": $bpe}""")
        val look = """{"type": "Split", "pattern": {"Regex": "(?<=a)b"}, "behavior": "Isolated", "invert": false}"""
        assertRefused("(?<=", """{"pre_tokenizer": $look, "model": $bpe}""")
        assertRefused("end_of_word_suffix", bpeWith("\"end_of_word_suffix\": \"x\""))
        assertRefused("at random", bpeWith("\"dropout\": 0.1"))
    }

    @Test
    fun `a damaged character map is refused`() {
        for (map in listOf("*", "", "AAAA", "/////w==", "BAAAAAAAAAA=")) {
            val normalizer = """{"type": "Precompiled", "precompiled_charsmap": "$map"}"""
            assertThrows(BundleException::class.java) {
                read("""{"normalizer": $normalizer, "model": $unigram}""").encode("a\u00e9\u4e00")
            }
        }
    }

    @Test
    fun `parts within parts without end are refused`() {
        val depth = 20_000
        val nested = """{"type": "Sequence", "normalizers": [""".repeat(depth) + "]}".repeat(depth)
        assertThrows(BundleException::class.java) { read("""{"normalizer": $nested, "model": $bpe}""") }
    }

    @Test
    fun `half of a surrogate pair is refused`() {
        for (text in listOf("a\ud83d", "\ude42", "\ude42\ud83d", "\ud83da")) {
            val message = assertThrows(InputException::class.java) { read("""{"model": $bpe}""").encode(text) }.message
            assertEquals("The text is not valid Unicode.", message)
        }
    }

    @Test
    fun `a word of a megabyte takes no second for each kilobyte`() {
        val word = "ab".repeat(500_000)
        val split = """{"type": "ByteLevel", "add_prefix_space": false}"""
        for (model in listOf(bpe, unigram)) {
            val tokenizer = read("""{"pre_tokenizer": $split, "model": $model}""")
            assertTimeout(Duration.ofSeconds(20)) { assertTrue(tokenizer.encode(word).isNotEmpty()) }
            assertTimeout(Duration.ofSeconds(20)) { tokenizer.encode(" ".repeat(1_000_000)) }
        }
    }

    @Test
    fun `a unigram model without an unknown token says what it lacks`() {
        val tokenizer = read("""{"model": {"type": "Unigram", "vocab": [["a", -1]]}}""")
        assertArrayEquals(intArrayOf(0), tokenizer.encode("a"))
        assertThrows(BundleException::class.java) { tokenizer.encode("b") }
    }
}
