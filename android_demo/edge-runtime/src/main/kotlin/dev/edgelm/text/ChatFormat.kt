package dev.edgelm.text

import dev.edgelm.InputException
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/** One turn of a conversation; its role is `system`, `user` or `assistant`. */
@Serializable
data class Message(val role: String, val content: String)

/** A place for a message in a conversation. */
@Serializable
data class ChatSlot(
    val before: String,
    @SerialName("trim_start") val trimStart: Boolean = false,
    @SerialName("trim_end") val trimEnd: Boolean = false,
    val blank: Boolean = false,
)

/** The manifest's `chat_format`: what the model's chat template renders, said without Jinja. */
@Serializable
data class ChatFormat(
    @SerialName("first_user") val firstUser: ChatSlot? = null,
    val system: ChatSlot? = null,
    @SerialName("user_after_system") val userAfterSystem: ChatSlot? = null,
    val assistant: ChatSlot,
    val user: ChatSlot,
    val generation: String,
    val refused: List<String> = emptyList(),
) {
    /**
     * The prompt for the assistant's next turn. [hide]: what becomes of a message, and whether it is an answer.
     *
     * @throws InputException the format does not say how the model reads this conversation.
     */
    fun render(messages: List<Message>, hide: (String, Boolean) -> String = { text, _ -> text }): String {
        val text = StringBuilder()
        var before: String? = null
        for ((role, content) in messages) {
            val slot = slot(before, role)
            val trimmed = content.trim(*SPACE)
            if (trimmed.isEmpty() && !slot.blank) {
                throw InputException("A message of the $role is empty; this model needs some text there.")
            }
            refused.firstOrNull { it in content }?.let {
                throw InputException("A message has \"$it\" in it, which this model would not read as text.")
            }
            val shown = when {
                slot.trimStart && slot.trimEnd -> trimmed
                slot.trimStart -> content.trimStart(*SPACE)
                slot.trimEnd -> content.trimEnd(*SPACE)
                else -> content
            }
            text.append(slot.before).append(hide(shown, role == "assistant"))
            before = role
        }
        if (before != "user") throw InputException("The last message of a conversation must be the user's.")
        return text.append(generation).toString()
    }

    private fun slot(before: String?, role: String): ChatSlot = when (before to role) {
        null to "system" -> system ?: throw InputException("This model takes no system message.")
        null to "user" -> firstUser ?: throw InputException("This model needs a system message first.")
        "system" to "user" -> userAfterSystem ?: throw InputException("This model takes no system message.")
        "user" to "assistant" -> assistant
        "assistant" to "user" -> user
        else -> throw InputException("A conversation is a system message or none, then user and assistant in turns.")
    }

    private companion object {
        /** What Python strips, as templates do; Kotlin's own trim leaves U+0085. */
        val SPACE = (('\u0009'..'\u000D') + ('\u001C'..'\u0020') + ('\u2000'..'\u200A') +
            listOf('\u0085', '\u00A0', '\u1680', '\u2028', '\u2029', '\u202F', '\u205F', '\u3000')).toCharArray()
    }
}
