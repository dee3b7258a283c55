package dev.edgelm.app.chat

import dev.edgelm.text.Message
import java.io.File
import java.io.IOException
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json

/** A conversation with one bundle. [updated]: milliseconds since 1970. */
@Serializable
data class Stored(val id: String, val bundle: String, val updated: Long, val messages: List<Message>, val draft: String = "") {
    /** What it is about, for a list. */
    val title: String get() = messages.firstOrNull { it.role == "user" }?.content?.lineSequence()?.first()?.take(TITLE).orEmpty()
}

private const val TITLE = 60 // characters

/** Conversations in a folder, one JSON file each. */
class ConversationStore(private val folder: File) {
    private val json = Json { ignoreUnknownKeys = true }

    /** Write a conversation whole, or leave the file as it was: the process may end in between. */
    @Synchronized
    fun save(conversation: Stored) {
        folder.mkdirs()
        val part = File(folder, "${conversation.id}.part")
        part.writeText(json.encodeToString(Stored.serializer(), conversation))
        if (!part.renameTo(file(conversation.id))) throw IOException("The conversation could not be kept.")
    }

    /** The conversations with a bundle, the latest first. A file that cannot be read is passed over. */
    @Synchronized
    fun all(bundle: String): List<Stored> = folder.listFiles { file -> file.name.endsWith(END) }.orEmpty()
        .mapNotNull(::read).filter { it.bundle == bundle }.sortedByDescending { it.updated }

    @Synchronized
    fun delete(id: String) {
        file(id).delete()
    }

    private fun read(file: File): Stored? = try {
        json.decodeFromString(Stored.serializer(), file.readText())
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    private fun file(id: String) = File(folder, id + END)

    private companion object {
        const val END = ".json"
    }
}
