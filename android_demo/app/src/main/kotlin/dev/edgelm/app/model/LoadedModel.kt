package dev.edgelm.app.model

import dev.edgelm.FinishReason
import dev.edgelm.Timings
import dev.edgelm.profile.Profile
import dev.edgelm.text.Message
import java.nio.ShortBuffer
import kotlinx.coroutines.flow.Flow
import kotlinx.serialization.Serializable

/** What the screens ask of a model, so that they are tested without one. Each kind of bundle has an interface of its own. */
interface LoadedModel : AutoCloseable {
    val name: String

    /** What it takes outside the Java heap, as planned. */
    val bytes: Long

    fun trim()
}

/** A decoder. */
interface ChatModel : LoadedModel {
    /** Maximum tokens of a conversation. */
    val context: Int

    /** Whether it was trained on conversations. */
    val chats: Boolean

    fun chat(messages: List<Message>): Conversation

    fun profile(): Flow<Profile>
}

/** A conversation that remembers what was said. */
interface Conversation : AutoCloseable {
    val messages: List<Message>

    fun say(message: String): Flow<Words>
}

/** A model from text to text. */
interface TextModel : LoadedModel {
    /** Codes of the languages that a text may be in; empty where there is no choice. */
    val sources: List<String>

    /** Codes of the languages that it may become. */
    val targets: List<String>

    /** The bundle's own choice among each. */
    val source: String?
    val target: String?

    fun generate(text: String, from: String?, to: String?): Flow<Words>
}

/** A model that hears. */
interface SpeechModel : LoadedModel {
    /** Samples a second that it wants. */
    val sampleRate: Int

    /** Codes of the languages that it knows; empty where there is no choice. */
    val languages: List<String>

    /** [language]: null where it is to find out itself. */
    fun transcribe(pcm: ShortBuffer, language: String?): Flow<Line>
}

/** What was said from [start] to [end], in seconds. Joined, the texts of all lines are what was said. */
@Serializable
data class Line(val start: Double, val end: Double, val text: String)

/** A piece of an answer; the last one has [finish] and [timings]. */
class Words(val text: String, val finish: FinishReason? = null, val timings: Timings? = null) {
    /** How long the whole answer took, and what cut it off; null before its end. */
    val note: String? get() = timings?.let {
        listOfNotNull(
            "First token after ${it.firstTokenMs.toInt()} ms",
            it.tokensPerSecond?.let { rate -> "%.1f tokens/s".format(rate) },
            "${it.generatedTokens} tokens",
            when (finish) {
                FinishReason.CONTEXT -> "the context is full"
                FinishReason.LENGTH -> "cut at the maximum length"
                else -> null
            },
        ).joinToString(", ")
    }
}
