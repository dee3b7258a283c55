package dev.edgelm.text

import dev.edgelm.InputException
import java.io.File
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test

class ChatFormatTest {
    @Serializable
    private data class Case(val format: ChatFormat, val messages: List<Message>, val rendered: String?)

    private val format = ChatFormat(
        firstUser = ChatSlot("<user>", trimStart = true),
        assistant = ChatSlot("<assistant>", blank = true),
        user = ChatSlot("<next>", trimEnd = true),
        generation = "<answer>",
        refused = listOf("</think>"),
    )

    @Test
    fun `a format renders what jinja2 renders, and refuses the rest`() {
        val folder = System.getProperty("edge.corpus").orEmpty()
        assumeTrue(folder.isNotEmpty(), "edge.corpus names no folder with the conversations that Python wrote")
        val cases = File(folder, "chat_formats.jsonl").readLines().map { Json.decodeFromString<Case>(it) }
        assertTrue(cases.size > 100)
        for ((format, messages, rendered) in cases) {
            if (rendered == null) {
                assertThrows(InputException::class.java, { format.render(messages) }, "$format: $messages")
            } else {
                assertEquals(rendered, format.render(messages))
            }
        }
    }

    @Test
    fun `messages stand in their slots`() {
        val messages = listOf(Message("user", " a "), Message("assistant", " "), Message("user", "\u0085b\u0085"))
        assertEquals("<user>a <assistant> <next>\u0085b<answer>", format.render(messages))
    }

    @Test
    fun `a refusal is a sentence for the app`() {
        fun refusal(vararg messages: Message) =
            assertThrows(InputException::class.java) { format.render(messages.toList()) }.message

        val question = Message("user", "a")
        assertEquals("The last message of a conversation must be the user's.", refusal())
        assertEquals("This model takes no system message.", refusal(Message("system", "a"), question))
        assertEquals(
            "A conversation is a system message or none, then user and assistant in turns.",
            refusal(question, question),
        )
        assertEquals("A message of the user is empty; this model needs some text there.", refusal(Message("user", " ")))
        assertEquals(
            "A message has \"</think>\" in it, which this model would not read as text.",
            refusal(question, Message("assistant", "x</think>y"), question),
        )
    }
}
