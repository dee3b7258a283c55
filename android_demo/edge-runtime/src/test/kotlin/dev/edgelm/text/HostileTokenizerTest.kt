package dev.edgelm.text

import dev.edgelm.BundleException
import java.io.File
import java.time.Duration
import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTimeoutPreemptively
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Tokenizers from a stranger, whose patterns and texts take without end. */
class HostileTokenizerTest {
    @TempDir
    lateinit var folder: File

    private val model = """{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}"""

    private fun read(parts: String): Tokenizer =
        Tokenizer.read(File(folder, "tokenizer.json").apply { writeText("""{$parts "model": $model}""") })

    private fun split(pattern: String) =
        read(""""pre_tokenizer": {"type": "Split", "pattern": {"Regex": "$pattern"}, "behavior": "Isolated", "invert": false},""")

    private fun refused(words: String, action: () -> Unit) = assertTimeoutPreemptively(Duration.ofSeconds(60)) {
        val error = assertThrows(BundleException::class.java) { action() }
        assertTrue(words in error.message!!, error.message)
    }

    @Test
    fun `a pattern that tries ways without end is given up`() {
        for (pattern in listOf("(?:a+)+c", "(?:a|a)+c", "(?:a|aa)+?c", "(?:a+a+)+c")) {
            val tokenizer = split(pattern)
            refused("its pattern takes more than") { tokenizer.encode("a".repeat(60)) }
        }
    }

    @Test
    fun `a pattern that repeats repetitions is refused before it is made`() {
        for (pattern in listOf("(?:(?:(?:ab){1000}){1000}){1000}", "(?:(?:ab){1,900}){1,900}")) {
            refused("has more than 100000 steps") { split(pattern) }
        }
    }

    @Test
    fun `a pattern that goes deeper than the stack is told`() {
        val tokenizer = split("(?:ab|a)+")
        refused("nests too deeply") { tokenizer.encode("ab".repeat(2_000_000)) }
        assertTrue(tokenizer.encode("abab").isNotEmpty())
        refused("cannot be read as a tokenizer") { split("(?:".repeat(200_000) + ")".repeat(200_000)) }
    }

    @Test
    fun `a normalizer that makes texts grow without end is given up`() {
        val random = Random(3)
        repeat(3) {
            val factor = random.nextInt(10, 5000)
            val part = """{"type": "Replace", "pattern": {"String": "a"}, "content": "${"a".repeat(factor)}"}"""
            val tokenizer = read(""""normalizer": {"type": "Sequence", "normalizers": [${List(12) { part }.joinToString()}]},""")
            refused("its normalizer makes a text too long") { tokenizer.encode("a".repeat(random.nextInt(1, 2000))) }
        }
        val huge = """{"type": "Replace", "pattern": {"Regex": "a"}, "content": "${"b".repeat(1_000_000)}"}"""
        refused("its normalizer makes a text too long") { read(""""normalizer": $huge,""").encode("a".repeat(5000)) }
    }

    @Test
    fun `parts within parts without end are refused`() {
        for (depth in listOf(20_000, 3_000_000)) {
            refused("cannot be read as a tokenizer") { read(""""normalizer": {"a":""" + "[".repeat(depth)) }
        }
    }
}
