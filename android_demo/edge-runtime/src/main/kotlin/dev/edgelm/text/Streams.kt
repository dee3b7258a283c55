package dev.edgelm.text

import dev.edgelm.InputException

private const val REPLACEMENT = '\ufffd'

/**
 * Turns a stream of token ids into text as soon as characters are whole.
 *
 * The pieces add up to what decoding all tokens at once gives. Each token costs decoding a few: those whose text is not
 * complete, after the last ones that were, because a token's leading space depends on the token before. [silent]: ids
 * that have no text.
 */
class Detokenizer(private val decode: (IntArray) -> String, private val silent: (Int) -> Boolean) {
    private var before = IntArray(0) // tokens given out last
    private var beforeText = ""
    private var pending = IntArray(0)
    private var given = 0 // characters of the pending text that were given out

    /** The text that became certain with this token; often empty while a character spans tokens. */
    fun push(token: Int): String {
        if (silent(token)) return ""
        pending += token
        val text = pendingText()
        val certain = maxOf(text.trimEnd(REPLACEMENT).length, text.length - INCOMPLETE)
        val piece = if (given < certain) text.substring(given, certain) else ""
        given = maxOf(given, certain)
        if (certain == text.length) {
            before = pending
            beforeText = decode(pending)
            pending = IntArray(0)
            given = 0
        } else if (pending.size > LONG_WINDOW) {
            shorten(text.length - certain)
        }
        return piece
    }

    /** What is left when no token follows: an unfinished character as U+FFFD. */
    fun flush(): String {
        val piece = pendingText().drop(given)
        before = IntArray(0)
        beforeText = ""
        pending = IntArray(0)
        given = 0
        return piece
    }

    private fun pendingText(): String {
        val whole = decode(before + pending)
        // An invalid byte spoils a whole run in a byte-fallback vocabulary.
        return if (whole.startsWith(beforeText)) whole.substring(beforeText.length) else decode(pending)
    }

    private fun shorten(held: Int) {
        before = IntArray(0)
        beforeText = ""
        pending = pending.copyOfRange(pending.size - SHORT_WINDOW, pending.size)
        given = maxOf(0, decode(pending).length - held)
    }

    private companion object {
        const val INCOMPLETE = 3 // maximum replacement characters of a tail that may still become one character
        const val LONG_WINDOW = 16 // tokens after which one that found no clean end keeps only the last few
        const val SHORT_WINDOW = 8
    }
}

/** Finds the first of some strings in streamed text, also across pieces; InputException where one is empty. */
class StopStrings(private val stops: List<String>) {
    private var held = "" // an end of the text so far that may be the start of a stop string

    init {
        if ("" in stops) {
            throw InputException("A stop string is empty; give at least one character, or no stop string at all.")
        }
    }

    /** Text that can be shown, and whether a stop string was found, which is left out with what follows. */
    fun push(text: String): Pair<String, Boolean> {
        if (stops.isEmpty()) return Pair(text, false)
        val whole = held + text
        val found = stops.map { whole.indexOf(it) }.filter { it >= 0 }.minOrNull()
        if (found != null) {
            held = ""
            return Pair(whole.substring(0, found), true)
        }
        val kept = stops.maxOf { overlap(whole, it) }
        held = whole.substring(whole.length - kept)
        return Pair(whole.substring(0, whole.length - kept), false)
    }

    /** The text held back, when nothing follows. */
    fun flush(): String = held.also { held = "" }

    /** The length of the longest end of a text that starts a stop string without completing it. */
    private fun overlap(text: String, stop: String): Int =
        (minOf(text.length, stop.length - 1) downTo 1).firstOrNull { text.endsWith(stop.substring(0, it)) } ?: 0
}
