package dev.edgelm.text

/** Splits a normalized text into the words that the model encodes one by one. */
internal interface PreTokenizer {
    fun split(span: Span, words: Words)
}

/** What pre-tokenizers give out; empty words are none. */
internal class Words {
    val spans = ArrayList<Span>()

    fun add(span: Span) {
        if (span.text.isNotEmpty()) spans += span
    }
}

internal class PreTokenizerSequence(private val parts: List<PreTokenizer>) : PreTokenizer {
    override fun split(span: Span, words: Words) {
        var spans: List<Span> = listOf(span)
        for (part in parts) {
            val next = Words()
            for (each in spans) part.split(each, next)
            spans = next.spans
        }
        spans.forEach(words::add)
    }
}

/** What becomes of the matches that split a text. */
internal enum class Behavior(val written: String) {
    REMOVED("Removed"),
    ISOLATED("Isolated"),
    MERGED_WITH_PREVIOUS("MergedWithPrevious"),
    MERGED_WITH_NEXT("MergedWithNext"),
    CONTIGUOUS("Contiguous"),
}

/** The parts of a text in order, each a match or what is between two. */
internal class Cuts(private val text: String) {
    private val ends = Ids()
    private val flags = Ids()
    private var end = 0

    fun match(from: Int, to: Int) {
        if (from > end) add(from, 0)
        add(to, 1)
    }

    fun finish() {
        if (end < text.length) add(text.length, 0)
    }

    private fun add(to: Int, flag: Int) {
        ends.add(to)
        flags.add(flag)
        end = to
    }

    /** [invert]: what is between the matches counts as them. */
    fun split(span: Span, behavior: Behavior, invert: Boolean, words: Words) {
        val match = if (invert) 0 else 1
        var from = 0
        for (at in 0 until ends.size) {
            val isMatch = flags[at] == match
            val nextIsMatch = at + 1 < ends.size && flags[at + 1] == match
            val goesOn = at + 1 < ends.size && when (behavior) {
                Behavior.CONTIGUOUS -> isMatch == nextIsMatch
                Behavior.MERGED_WITH_PREVIOUS -> nextIsMatch && !isMatch
                Behavior.MERGED_WITH_NEXT -> isMatch && !nextIsMatch
                else -> false
            }
            if (goesOn) continue
            if (behavior != Behavior.REMOVED || !isMatch) words.add(span.part(from, ends[at]))
            from = ends[at]
        }
    }
}

internal class Split(private val pattern: Pattern, private val behavior: Behavior, private val invert: Boolean) :
    PreTokenizer {
    override fun split(span: Span, words: Words) {
        val cuts = Cuts(span.text)
        pattern.matches(span.text, cuts::match)
        cuts.finish()
        cuts.split(span, behavior, invert, words)
    }
}

/** Splits at single characters. */
internal class CharacterSplit(private val behavior: Behavior, private val isMatch: (Int) -> Boolean) : PreTokenizer {
    override fun split(span: Span, words: Words) {
        val cuts = Cuts(span.text)
        var at = 0
        forEachCode(span.text) { code ->
            val end = at + Character.charCount(code)
            if (isMatch(code)) cuts.match(at, end)
            at = end
        }
        cuts.finish()
        cuts.split(span, behavior, false, words)
    }
}

/** Runs of word characters and runs of what is neither these nor white space. */
internal object Whitespace : PreTokenizer {
    override fun split(span: Span, words: Words) {
        var start = 0
        var kind = SPACE
        var at = 0
        forEachCode(span.text) { code ->
            val next = if (Unicode.isWord(code)) WORD else if (Unicode.isSpace(code)) SPACE else OTHER
            if (next != kind) {
                if (kind != SPACE) words.add(span.part(start, at))
                start = at
                kind = next
            }
            at += Character.charCount(code)
        }
        if (kind != SPACE) words.add(span.part(start, at))
    }

    private const val SPACE = 0
    private const val WORD = 1
    private const val OTHER = 2
}

internal enum class Scheme(val written: String) { ALWAYS("always"), FIRST("first"), NEVER("never") }

/** Spaces as a visible character, which begins each word. */
internal class Metaspace(private val mark: Char, private val scheme: Scheme, private val split: Boolean) :
    PreTokenizer {
    override fun split(span: Span, words: Words) {
        val replaced = Span(span.text.replace(' ', mark), span.first)
        val isStart = scheme == Scheme.ALWAYS || scheme == Scheme.FIRST && span.first > 0
        val marked = if (isStart && replaced.text[0] != mark) prepended(replaced, mark.toString()) else replaced
        if (!split) return words.add(marked)
        var start = 0
        for (at in 1..marked.text.length) {
            if (at < marked.text.length && marked.text[at] != mark) continue
            words.add(marked.part(start, at))
            start = at
        }
    }
}

/** Words in bytes, each as a character. [pattern]: splits the text, if it does. */
internal class ByteLevelSplit(private val prefixSpace: Boolean, private val pattern: Pattern?) : PreTokenizer {
    override fun split(span: Span, words: Words) {
        val spaced = if (prefixSpace && span.text[0] != ' ') prepended(span, " ") else span
        if (pattern == null) return words.add(encoded(spaced))
        var end = 0
        pattern.matches(spaced.text) { from, to ->
            if (from > end) words.add(encoded(spaced.part(end, from)))
            if (to > from) words.add(encoded(spaced.part(from, to)))
            end = to
        }
        if (end < spaced.text.length) words.add(encoded(spaced.part(end, spaced.text.length)))
    }

    private fun encoded(span: Span) = ByteLevelNormalizer.normalize(span)

    companion object {
        const val GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    }
}
