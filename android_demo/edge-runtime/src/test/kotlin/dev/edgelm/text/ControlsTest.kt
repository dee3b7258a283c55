package dev.edgelm.text

import dev.edgelm.bundle.TextFormat
import java.io.File
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

class ControlsTest {
    @TempDir
    lateinit var folder: File

    private fun added(id: Int, text: String, special: Boolean) = """{"id": $id, "content": "$text", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": $special}"""

    private fun read(model: String, added: List<String>): Tokenizer =
        Tokenizer.read(File(folder, "tokenizer.json").apply { writeText("""{"model": $model, "added_tokens": $added}""") })

    private val bpe = """{"type": "BPE", "vocab": {"<": 0, "e": 1, ">": 2, "a": 3, "e>": 4}, "merges": [["e", ">"]]}"""
    private val letters by lazy { read(bpe, listOf(added(5, "<e>", special = true), added(6, "<a>", special = false))) }

    @Test
    fun `control tokens that people typed are text`() {
        val controls = Controls.of(letters, "a template with <e> and <a>")
        assertArrayEquals(intArrayOf(3, 5, 6), letters.encode("a<e><a>"))
        assertArrayEquals(intArrayOf(3, 0, 4, 0, 3, 2), letters.encode(controls.hide("a<e><a>")))
        assertArrayEquals(intArrayOf(5, 3, 0, 4, 5), letters.encode("<e>" + controls.hide("a<e>") + "<e>"))
        assertArrayEquals(intArrayOf(0, 4, 6), letters.encode(controls.hide("<e><a>", answer = true)))
        assertEquals("a e>", controls.hide("a e>"))
    }

    @Test
    fun `tokens that are not special are text where the template writes them`() {
        assertArrayEquals(intArrayOf(6), letters.encode(Controls.of(letters, "no such").hide("<a>")))
    }

    @Test
    fun `no character of a text is lost`() {
        val vocabulary = """{"\uFDD0": 0, "a": 1, "<": 2, ">": 3, "\ud83e\udd16": 4}"""
        val special = listOf(added(5, "<a>", special = true), added(6, "\ud83e\udd16>", special = true))
        val tokenizer = read("""{"type": "BPE", "vocab": $vocabulary, "merges": []}""", special)
        val controls = Controls.of(tokenizer, "a template")
        assertArrayEquals(intArrayOf(0, 1, 0), tokenizer.encode("\uFDD0a\uFDD0"))
        assertArrayEquals(intArrayOf(0, 2, 1, 3, 0, 4, 3), tokenizer.encode(controls.hide("\uFDD0<a>\uFDD0\ud83e\udd16>")))
    }

    @Test
    fun `pieces of a vocabulary are none of what people typed`() {
        val vocabulary = """[["<u>", 0], ["</s>", 0], ["<", -1], ["/", -1], ["s", -1], [">", -1], ["<mask>", 0], ["m", -1]]"""
        val special = listOf(added(0, "<u>", special = true), added(1, "</s>", special = true), added(6, "<mask>", special = true))
        val tokenizer = read("""{"type": "Unigram", "unk_id": 0, "vocab": $vocabulary}""", special)
        val controls = Controls.of(tokenizer, TextFormat())
        assertArrayEquals(intArrayOf(1), tokenizer.encode("</s>"))
        assertArrayEquals(intArrayOf(2, 3, 4, 5, 6, 4), tokenizer.encode(controls.hide("</s><mask>s")))
    }
}
