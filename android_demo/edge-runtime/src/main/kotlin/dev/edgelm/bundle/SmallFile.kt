package dev.edgelm.bundle

import dev.edgelm.BundleException
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

/**
 * The bytes of a file of up to [most] of them: no pipe, of which a reader would wait for a writer, and none without end.
 *
 * @throws IOException it is no regular file, larger, or cannot be read.
 */
internal fun readSmall(file: File, most: Int): ByteArray {
    if (!file.isFile) throw IOException(if (file.exists()) "it is no regular file" else "there is none")
    file.inputStream().use { stream ->
        val size = stream.channel.size()
        if (size > most) throw IOException("it has $size bytes, and at most $most are read")
        return stream.readBytes()
    }
}

/**
 * The text of a small JSON file: as [readSmall], in which nothing lies deeper than a parser's stack goes.
 *
 * @throws BundleException it cannot be read, is no text in UTF-8, or nested too deeply.
 */
internal fun readJson(file: File, most: Int): String {
    val text = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(readSmall(file, most))).toString()
    } catch (e: CharacterCodingException) {
        throw BundleException("$file is not a text file that can be read; copy the bundle again.", e)
    } catch (e: IOException) {
        throw BundleException("$file cannot be read: ${e.message}.", e)
    }
    var depth = 0
    var quoted = false
    var at = 0
    while (at < text.length) {
        when (text[at]) {
            '\\' -> at++
            '"' -> quoted = !quoted
            '[', '{' -> if (!quoted && ++depth > MOST_DEPTH) {
                throw BundleException("$file is damaged: its values lie $MOST_DEPTH deep in each other; copy the bundle again.")
            }
            ']', '}' -> if (!quoted) depth--
        }
        at++
    }
    return text
}

private const val MOST_DEPTH = 100 // a manifest's is 5
