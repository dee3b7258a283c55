package dev.edgelm.app.model

import dev.edgelm.EdgeChat
import dev.edgelm.EdgeModel
import dev.edgelm.FinishReason
import dev.edgelm.GenerateOptions
import dev.edgelm.Timings
import dev.edgelm.profile.DeviceName
import dev.edgelm.profile.Profile
import dev.edgelm.text.Message
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.map

/** What the screens ask of a model, so that they are tested without one. */
interface LoadedModel : AutoCloseable {
    val name: String

    /** Maximum tokens of a conversation. */
    val context: Int

    /** What it takes outside the Java heap, as planned. */
    val bytes: Long

    /** Whether it was trained on conversations. */
    val chats: Boolean

    fun chat(messages: List<Message>): Conversation

    fun profile(): Flow<Profile>

    fun trim()
}

/** A conversation that remembers what was said. */
interface Conversation : AutoCloseable {
    val messages: List<Message>

    fun say(message: String): Flow<Words>
}

/** A piece of an answer; the last one has [finish] and [timings]. */
class Words(val text: String, val finish: FinishReason? = null, val timings: Timings? = null)

/** The library's model. */
class OpenModel(private val model: EdgeModel, private val device: DeviceName) : LoadedModel {
    override val name: String get() = model.bundle.manifest.name
    override val context: Int get() = model.context
    override val bytes: Long get() = model.plan.bytes
    override val chats: Boolean get() = model.hasChatFormat

    override fun chat(messages: List<Message>): Conversation = OpenChat(model.chat(messages))

    override fun profile(): Flow<Profile> = model.profile(device)

    override fun trim() = model.trim()

    override fun close() = model.close()
}

private class OpenChat(private val chat: EdgeChat) : Conversation {
    override val messages: List<Message> get() = chat.messages

    override fun say(message: String): Flow<Words> =
        chat.say(message, GenerateOptions(maxTokens = MOST)).map { Words(it.text, it.finish, it.timings) }

    override fun close() = chat.close()

    private companion object {
        const val MOST = 1024 // tokens of an answer; small models may not find an end
    }
}
