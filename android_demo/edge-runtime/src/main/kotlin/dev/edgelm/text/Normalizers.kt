package dev.edgelm.text

import java.text.Normalizer as Forms

/** Changes a text before it is split into words. */
internal interface Normalizer {
    fun normalize(span: Span): Span
}

internal class NormalizerSequence(private val parts: List<Normalizer>) : Normalizer {
    override fun normalize(span: Span): Span = parts.fold(span) { each, part -> part.normalize(each).also { check(span, it) } }

    /** Refuse what grows without end. */
    private fun check(span: Span, made: Span) {
        if (made.text.length > MOST && made.text.length / GROWTH > span.text.length) throw tooLong()
    }

    private companion object {
        const val MOST = 1 shl 22 // characters
        const val GROWTH = 64
    }
}

/** NFC, NFD, NFKC or NFKD. */
internal class UnicodeForm(private val form: Forms.Form) : Normalizer {
    override fun normalize(span: Span): Span = mapped(span) { Unicode.normalize(it, form) }
}

internal object Lowercase : Normalizer {
    override fun normalize(span: Span): Span = mapped(span) { text ->
        val result = StringBuilder(text.length)
        forEachCode(text) { result.append(Unicode.lower(it)) }
        result.toString()
    }
}

internal object StripAccents : Normalizer {
    override fun normalize(span: Span): Span = mapped(span) { text ->
        val result = StringBuilder(text.length)
        forEachCode(text) { if (!Unicode.isMark(it)) result.appendCodePoint(it) }
        result.toString()
    }
}

/** Each byte as the character that stands for it. */
internal object ByteLevelNormalizer : Normalizer {
    override fun normalize(span: Span): Span = mapped(span, ByteLevel::encode)
}

internal class Strip(private val left: Boolean, private val right: Boolean) : Normalizer {
    override fun normalize(span: Span): Span {
        var from = 0
        var to = span.text.length
        // All white space is in the basic plane.
        while (left && from < to && Unicode.isSpace(span.text[from].code)) from++
        while (right && to > from && Unicode.isSpace(span.text[to - 1].code)) to--
        return span.part(from, to)
    }
}

internal class Prepend(private val prefix: String) : Normalizer {
    override fun normalize(span: Span): Span = if (span.text.isEmpty()) span else prepended(span, prefix)
}

internal class Replace(private val pattern: Pattern, private val by: String) : Normalizer {
    override fun normalize(span: Span): Span {
        val text = pattern.replace(span.text, by)
        return if (text === span.text) span else Span(text, firstAfter(span))
    }

    /** A replacement comes from where the last character of its match does. */
    private fun firstAfter(span: Span): Int {
        var first = span.first
        pattern.matches(span.text) { from, to ->
            if (from >= span.first) return first
            if (to > span.first) return first - (span.first - from)
            first += by.length - (to - from)
        }
        return first
    }
}

internal fun prepended(span: Span, prefix: String): Span =
    Span(prefix + span.text, if (span.first > 0) span.first + prefix.length else 0)

/** What comes from the first character of the text is what that character alone becomes, one at least. */
private inline fun mapped(span: Span, map: (String) -> String): Span {
    val text = map(span.text)
    val first = if (span.first == 0 || text.isEmpty()) 0 else map(span.text.substring(0, span.first)).length
    return Span(text, minOf(maxOf(first, minOf(span.first, 1)), text.length))
}

internal inline fun forEachCode(text: String, action: (Int) -> Unit) {
    var at = 0
    while (at < text.length) {
        val code = text.codePointAt(at)
        action(code)
        at += Character.charCount(code)
    }
}
