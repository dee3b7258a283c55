package dev.edgelm.text

import dev.edgelm.InputException
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Test

class StreamsTest {
    /** A vocabulary of bytes. */
    private fun decode(ids: IntArray): String = Utf8.decode(ByteArray(ids.size) { ids[it].toByte() }, ids.size)

    private fun bytes(text: String): List<Int> = text.toByteArray().map { it.toInt() and 0xff }

    @Test
    fun `a character comes with its last byte`() {
        val stream = Detokenizer(::decode) { false }
        assertEquals(listOf("a", "", "", "", "🙂", "", "é"), bytes("a🙂é").map(stream::push))
        assertEquals("", stream.flush())
    }

    @Test
    fun `an unfinished character comes at the end as a replacement`() {
        val stream = Detokenizer(::decode) { false }
        assertEquals(listOf("", ""), bytes("🙂").take(2).map(stream::push))
        assertEquals("\ufffd", stream.flush())
    }

    @Test
    fun `pieces of bytes that are no text add up to what they are together`() {
        val ids = (0 until 60).map { 0x80 + it % 0x40 } + bytes("end")
        val stream = Detokenizer(::decode) { false }
        assertEquals(decode(ids.toIntArray()), ids.joinToString("", transform = stream::push) + stream.flush())
    }

    @Test
    fun `silent tokens have no text`() {
        val stream = Detokenizer(::decode) { it == 'x'.code }
        assertEquals(listOf("a", "", "b"), bytes("axb").map(stream::push))
    }

    @Test
    fun `a stop string is found across pieces and left out`() {
        val stops = StopStrings(listOf("END", "###"))
        assertEquals(Pair("a ", false), stops.push("a #"))
        assertEquals(Pair("#b ", false), stops.push("b E"))
        assertEquals(Pair("", false), stops.push("N"))
        assertEquals(Pair("", true), stops.push("D c"))
    }

    @Test
    fun `what was held back for a stop string comes at the end`() {
        val stops = StopStrings(listOf("END"))
        assertEquals(Pair("a ", false), stops.push("a EN"))
        assertEquals("EN", stops.flush())
        assertEquals("", stops.flush())
    }

    @Test
    fun `the first of two stop strings counts`() {
        assertEquals(Pair("a", true), StopStrings(listOf("c", "b")).push("abc"))
        assertEquals(Pair("abc", false), StopStrings(emptyList()).push("abc"))
    }

    @Test
    fun `an empty stop string is refused`() {
        assertThrows(InputException::class.java) { StopStrings(listOf("a", "")) }
    }
}
