package dev.edgelm.text

import dev.edgelm.BundleException

/**
 * A regular expression of a `tokenizer.json`, or a fixed text.
 *
 * Own code, because java.util.regex is another engine on Android than on a JVM and knows another Unicode on each phone.
 */
internal class Pattern private constructor(private val literal: String?, private val start: Node?) {
    /**
     * Calls [found] for each match in turn with its start and end. An empty match right after the last match is none,
     * as in the library.
     */
    inline fun matches(text: String, found: (Int, Int) -> Unit) {
        val subject = Subject(text)
        var at = 0
        var last = -1
        while (at <= text.length) {
            val match = search(subject, at)
            if (match < 0) return
            val from = (match ushr 32).toInt()
            val to = match.toInt()
            if (from == to && to == last) {
                at = after(text, at)
                continue
            }
            found(from, to)
            at = to
            last = to
        }
    }

    fun replace(text: String, by: String): String {
        val result = StringBuilder(text.length)
        var end = 0
        matches(text) { from, to ->
            result.append(text, end, from).append(by)
            if (result.length > MOST_GROWN && result.length / GROWTH > text.length) throw tooLong()
            end = to
        }
        return if (end == 0 && result.isEmpty()) text else result.append(text, end, text.length).toString()
    }

    /** Where the next match starts, and below that where it ends; -1 where there is none. */
    fun search(subject: Subject, from: Int): Long {
        val text = subject.text
        if (literal != null) {
            val found = text.indexOf(literal, from)
            return if (found < 0) -1 else found.toLong() shl 32 or (found + literal.length).toLong()
        }
        var at = from
        while (at <= text.length) {
            val end = start!!.match(subject, at)
            if (end >= 0) return at.toLong() shl 32 or end.toLong()
            at = after(text, at)
        }
        return -1
    }

    fun after(text: String, at: Int): Int = at + if (at < text.length) Character.charCount(text.codePointAt(at)) else 1

    companion object {
        fun literal(text: String): Pattern = Pattern(text, null)

        /** BundleException where the expression uses what is not known here. */
        fun regex(expression: String): Pattern {
            val tree = PatternParser(expression).parse()
            if (tree.steps > MOST_STEPS) throw BundleException("its pattern has more than $MOST_STEPS steps")
            return Pattern(null, tree.compile(End))
        }

        private const val MOST_STEPS = 100_000L // GPT-2's has 40
        private const val MOST_GROWN = 1 shl 24 // characters
        private const val GROWTH = 4
    }
}

internal fun tooLong() = BundleException("its normalizer makes a text too long")

/** A text that is matched, under a limit of time: some patterns try more ways than anybody can wait for. */
internal class Subject(val text: String) {
    private val began = System.nanoTime()
    private var steps = 0

    /** One more way is tried. */
    fun step() {
        if (++steps and SELDOM == 0 && System.nanoTime() - began > LONGEST) {
            throw BundleException("its pattern takes more than ${LONGEST / 1_000_000_000} s for a text of ${text.length} letters")
        }
    }

    private companion object {
        const val SELDOM = 0xffff
        const val LONGEST = 5_000_000_000L // ns
    }
}

/** A step of matching: where the whole match ends that begins with this step at a place, or -1. */
internal abstract class Node {
    abstract fun match(subject: Subject, at: Int): Int
}

internal object End : Node() {
    override fun match(subject: Subject, at: Int): Int = at
}

internal class One(private val set: CharSet, private val next: Node) : Node() {
    override fun match(subject: Subject, at: Int): Int {
        val text = subject.text
        if (at >= text.length) return -1
        val code = text.codePointAt(at)
        return if (code in set) next.match(subject, at + Character.charCount(code)) else -1
    }
}

/** Characters of a set as often as possible, or as rarely. */
internal class Many(
    private val set: CharSet,
    private val min: Int,
    private val max: Int,
    private val greed: Greed,
    private val next: Node,
) : Node() {
    override fun match(subject: Subject, at: Int): Int = if (greed == Greed.LAZY) few(subject, at) else many(subject, at)

    private fun many(subject: Subject, at: Int): Int {
        val text = subject.text
        var end = at
        var count = 0
        while (count < max && end < text.length) {
            val code = text.codePointAt(end)
            if (code !in set) break
            end += Character.charCount(code)
            count++
        }
        while (count >= min) {
            subject.step()
            val found = next.match(subject, end)
            if (found >= 0 || greed == Greed.POSSESSIVE || count == 0) return found
            end -= Character.charCount(text.codePointBefore(end))
            count--
        }
        return -1
    }

    private fun few(subject: Subject, at: Int): Int {
        val text = subject.text
        var end = at
        var count = 0
        while (true) {
            subject.step()
            if (count >= min) next.match(subject, end).let { if (it >= 0) return it }
            if (count == max || end >= text.length) return -1
            val code = text.codePointAt(end)
            if (code !in set) return -1
            end += Character.charCount(code)
            count++
        }
    }
}

internal class Either(private val branches: Array<Node>) : Node() {
    override fun match(subject: Subject, at: Int): Int {
        subject.step()
        for (branch in branches) branch.match(subject, at).let { if (it >= 0) return it }
        return -1
    }
}

/** Any number of times a part that is never empty. */
internal class Loop(private val greedy: Boolean, private val next: Node) : Node() {
    lateinit var body: Node // ends with this loop

    override fun match(subject: Subject, at: Int): Int {
        subject.step()
        val first = if (greedy) body else next
        val found = first.match(subject, at)
        return if (found >= 0) found else (if (greedy) next else body).match(subject, at)
    }
}

/** A part whose first match is the only one that is tried. */
internal class Atomic(private val body: Node, private val next: Node) : Node() {
    override fun match(subject: Subject, at: Int): Int {
        val end = body.match(subject, at)
        return if (end >= 0) next.match(subject, end) else -1
    }
}

internal class Ahead(private val body: Node, private val wanted: Boolean, private val next: Node) : Node() {
    override fun match(subject: Subject, at: Int): Int =
        if ((body.match(subject, at) >= 0) == wanted) next.match(subject, at) else -1
}

internal class Edge(private val edge: Char, private val next: Node) : Node() {
    override fun match(subject: Subject, at: Int): Int {
        val text = subject.text
        val here = when (edge) {
            '^' -> at == 0 || text[at - 1] == '\n' && at < text.length
            '$' -> at == text.length || text[at] == '\n'
            'A' -> at == 0
            else -> at == text.length
        }
        return if (here) next.match(subject, at) else -1
    }
}
