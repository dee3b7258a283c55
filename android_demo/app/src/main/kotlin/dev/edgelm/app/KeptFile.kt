package dev.edgelm.app

import java.io.File
import java.io.IOException
import kotlinx.serialization.KSerializer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json

/** A value in a JSON file, which outlives the process. */
class KeptFile<T>(private val file: File, private val serializer: KSerializer<T>) {
    /** Null where there is no file, or one that cannot be read. */
    @Synchronized
    fun read(): T? = try {
        file.takeIf { it.isFile }?.let { json.decodeFromString(serializer, it.readText()) }
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    /** Write it whole, or leave the file as it was: the process may end in between. IOException where there is no room. */
    @Synchronized
    fun write(value: T) {
        val part = File(file.path + ".part")
        part.parentFile!!.mkdirs()
        part.writeText(json.encodeToString(serializer, value))
        if (!part.renameTo(file)) throw IOException("$file could not be replaced.")
    }

    private companion object {
        val json = Json { ignoreUnknownKeys = true }
    }
}
