package dev.edgelm.text

import java.io.File
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.abort
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory

/** Compares with what tests/android/tokenizer_corpus.py wrote: what the `tokenizers` library makes of texts. */
class CorpusTest {
    @Serializable
    private class Case(
        val size: Int? = null,
        val special: Set<Int> = emptySet(),
        val tokens: Map<Int, String?> = emptyMap(),
        val text: String? = null,
        val ids: List<Int> = emptyList(),
        val decoded: String? = null,
        val stream: List<Int>? = null,
        val pieces: List<String> = emptyList(),
    )

    @Serializable
    private class PatternCase(val pattern: String, val text: String, val parts: List<String>)

    private val json = Json { ignoreUnknownKeys = true }

    /** Tests of a corpus; one that is skipped where there is none. */
    private fun tests(make: (File) -> List<DynamicTest>): List<DynamicTest> {
        val folder = System.getProperty("edge.corpus").orEmpty()
        if (folder.isEmpty()) {
            return listOf(DynamicTest.dynamicTest("skipped") { abort<Unit>("needs -Dedge.corpus=FOLDER with texts") })
        }
        return make(File(folder, "tokenizers")).also { assertTrue(it.isNotEmpty(), "$folder has no tokenizers") }
    }

    @TestFactory
    fun `each tokenizer does what the library does`(): List<DynamicTest> = tests { corpus ->
        corpus.listFiles { file -> file.isDirectory }.orEmpty().sorted().map { folder ->
            DynamicTest.dynamicTest(folder.name) { compare(folder) }
        }
    }

    private fun compare(folder: File) {
        val tokenizer = Tokenizer.read(File(folder, "tokenizer.json"))
        val silent: (Int) -> Boolean = { it in tokenizer.special }
        val differences = Differences(folder.name)
        File(folder, "cases.jsonl").forEachLine { line ->
            val case = json.decodeFromString(Case.serializer(), line)
            if (case.size != null) {
                differences.compare("size", case.size, tokenizer.size)
                differences.compare("special tokens", case.special, tokenizer.special)
                differences.compare("tokens", case.tokens, case.tokens.mapValues { tokenizer.token(it.key) })
            }
            if (case.text != null) differences.compare(case.text, case.ids, tokenizer.encode(case.text).toList())
            if (case.decoded != null) {
                differences.compare(case.ids, case.decoded, tokenizer.decode(case.ids.toIntArray()))
            }
            if (case.stream != null) {
                val stream = Detokenizer(tokenizer::decode, silent)
                differences.compare(case.stream, case.pieces, case.stream.map(stream::push) + stream.flush())
            }
        }
        differences.assertNone()
    }

    @TestFactory
    fun `each pattern splits as the library does`(): List<DynamicTest> = tests { corpus ->
        val lines = File(corpus, "patterns.jsonl").readLines()
        val cases = lines.map { json.decodeFromString(PatternCase.serializer(), it) }
        cases.groupBy { it.pattern }.map { (expression, group) ->
            DynamicTest.dynamicTest(expression.ifEmpty { "(empty)" }) {
                val split = Split(Pattern.regex(expression), Behavior.ISOLATED, false)
                val differences = Differences(expression)
                for (case in group) {
                    val words = Words().also { split.split(Span(case.text, 0), it) }
                    differences.compare(case.text, case.parts, words.spans.map { it.text })
                }
                differences.assertNone()
            }
        }
    }

    private class Differences(private val name: String) {
        private var cases = 0
        private val found = ArrayList<String>()

        fun compare(about: Any, expected: Any?, actual: Any?) {
            cases++
            if (expected == actual) return
            found += "${visible(about)}\n  library ${visible(expected)}\n  here    ${visible(actual)}"
        }

        fun assertNone() = assertEquals(
            "",
            found.take(SHOWN).joinToString("\n"),
            "$name: ${found.size} of $cases differ; the first are:\n",
        )

        /** Characters beyond the visible ones of ASCII as numbers. */
        private fun visible(value: Any?): String = buildString {
            forEachCode(value.toString()) { if (it in 0x20..0x7e) appendCodePoint(it) else append("<%x>".format(it)) }
        }
    }

    private companion object {
        const val SHOWN = 5
    }
}
