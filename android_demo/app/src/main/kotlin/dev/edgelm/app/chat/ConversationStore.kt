package dev.edgelm.app.chat

import dev.edgelm.app.KeptFile
import dev.edgelm.text.Message
import java.io.File
import kotlinx.serialization.Serializable

/** A conversation with one bundle. [updated]: milliseconds since 1970. */
@Serializable
data class Stored(val id: String, val bundle: String, val updated: Long, val messages: List<Message>, val draft: String = "") {
    /** What it is about, for a list. */
    val title: String get() = messages.firstOrNull { it.role == "user" }?.content?.lineSequence()?.first()?.take(TITLE).orEmpty()
}

private const val TITLE = 60 // characters

/** Conversations in a folder, one JSON file each. */
class ConversationStore(private val folder: File) {
    @Synchronized
    fun save(conversation: Stored) = file(conversation.id).write(conversation)

    /** The conversations with a bundle, the latest first. A file that cannot be read is passed over. */
    @Synchronized
    fun all(bundle: String): List<Stored> = folder.list { _, name -> name.endsWith(END) }.orEmpty()
        .mapNotNull { file(it.removeSuffix(END)).read() }.filter { it.bundle == bundle }.sortedByDescending { it.updated }

    @Synchronized
    fun delete(id: String) {
        path(id).delete()
    }

    private fun file(id: String) = KeptFile(path(id), Stored.serializer())

    private fun path(id: String) = File(folder, id + END)

    private companion object {
        const val END = ".json"
    }
}
