package dev.edgelm.text

import dev.edgelm.BundleException

/** Reads a regular expression as Oniguruma does, with which the library reads those of a `tokenizer.json`. */
internal class PatternParser(private val text: String) {
    private var at = 0

    /** BundleException where the expression is wrong, or uses what is not known here. */
    fun parse(): Tree = choice(false).also { if (at < text.length) refuse("a bracket that is closed and never opened") }

    private fun choice(caseless: Boolean): Tree {
        val ignoreCase = take("(?i)") || caseless
        val parts = arrayListOf(chain(ignoreCase))
        while (take("|")) parts += chain(ignoreCase)
        return if (parts.size == 1) parts[0] else Choice(parts)
    }

    private fun chain(caseless: Boolean): Tree {
        val parts = ArrayList<Tree>()
        while (at < text.length && text[at] != '|' && text[at] != ')') parts += repeated(atom(caseless))
        return if (parts.size == 1) parts[0] else Chain(parts)
    }

    private fun repeated(part: Tree): Tree {
        var min = 0
        var max = Repeat.ENDLESS
        var counted = false
        when {
            take("*") -> Unit
            take("+") -> min = 1
            take("?") -> max = 1
            else -> {
                val found = INTERVAL.matchEntire(text.substring(at).substringBefore('}') + "}") ?: return part
                at += found.value.length
                counted = true
                val (first, comma, last) = found.destructured
                min = number(first, 0)
                max = if (comma.isEmpty()) min else number(last, Repeat.ENDLESS)
            }
        }
        val greed = if (take("?")) Greed.LAZY else if (take("+")) Greed.POSSESSIVE else Greed.GREEDY
        val odd = counted && (greed == Greed.POSSESSIVE || greed == Greed.LAZY && min == max)
        if (odd || min > max || at < text.length && text[at] in "*+?") refuse("a repetition of a repetition")
        if (part.canBeEmpty && part !is Chars && max > 1) refuse("a repetition of what may be empty")
        return Repeat(part, min, max, greed)
    }

    private fun number(digits: String, absent: Int): Int {
        val number = if (digits.isEmpty()) absent else digits.toIntOrNull() ?: Repeat.ENDLESS
        if (number > MAX_COUNT && digits.isNotEmpty()) refuse("a repetition of more than $MAX_COUNT times")
        return number
    }

    private fun atom(caseless: Boolean): Tree {
        if (take("(")) return group(caseless)
        if (take("[")) return Chars(characterClass(caseless))
        return when (val code = next()) {
            '.'.code -> Chars(CharSet.anyButNewline)
            '^'.code -> Anchor('^')
            '$'.code -> Anchor('$')
            '\\'.code -> {
                val letter = if (at < text.length) text[at] else refuse("a backslash at its end")
                if (letter == 'A' || letter == 'z') {
                    at++
                    Anchor(letter)
                } else {
                    Chars(escapedSet(CharSet.wordAlone, caseless) ?: single(escaped(), caseless))
                }
            }
            else -> Chars(single(code, caseless))
        }
    }

    private fun group(caseless: Boolean): Tree {
        val result = when {
            take("?:") -> choice(caseless)
            take("?i:") -> choice(true)
            take("?-i:") -> choice(false)
            take("?=") -> LookAhead(choice(caseless), true)
            take("?!") -> LookAhead(choice(caseless), false)
            take("?>") -> AtomicGroup(choice(caseless))
            at < text.length && text[at] == '?' -> refuse("a group that begins with (${text.substring(at).take(3)}")
            else -> choice(caseless)
        }
        if (!take(")")) refuse("a bracket that is not closed")
        return result
    }

    private fun characterClass(caseless: Boolean): CharSet {
        val negated = take("^")
        val result = CharSet.Builder()
        var isFirst = true
        while (isFirst || !take("]")) {
            if (at >= text.length) refuse("a bracket that is not closed")
            if (text.startsWith("[:", at) || text.startsWith("&&", at)) refuse(text.substring(at, at + 2))
            item(result, caseless)
            isFirst = false
        }
        return result.build().let { if (negated) it.negate() else it }
    }

    /** One entry of a character class: a set, a character or a range. */
    private fun item(result: CharSet.Builder, caseless: Boolean) {
        if (take("[")) {
            result.set(characterClass(caseless))
            return
        }
        val isEscape = take("\\")
        if (isEscape) escapedSet(CharSet.word, caseless)?.let { set ->
            result.set(set)
            return
        }
        val first = if (isEscape) escaped() else next()
        val isRange = text.startsWith("-", at) && at + 1 < text.length && text[at + 1] !in "]["
        if (!isRange) return add(result, first, first, caseless)
        at++
        if (take("\\")) {
            if (at < text.length && text[at] in "sSdDwWhHpP") refuse("a range up to a set")
            return add(result, first, escaped(), caseless)
        }
        add(result, first, next(), caseless)
    }

    private fun single(code: Int, caseless: Boolean): CharSet =
        CharSet.Builder().also { add(it, code, code, caseless) }.build()

    private fun add(result: CharSet.Builder, first: Int, last: Int, caseless: Boolean) {
        if (last < first) refuse("a range that ends before it begins")
        result.range(first, last)
        if (!caseless) return
        if (last > 0x7f) refuse("letters beyond a to z without regard to case")
        for (code in first..last) {
            val lower = Unicode.lowerCode(code)
            for (other in Unicode.withLower(lower)) result.range(other)
            if (lower == 's'.code) result.range(LONG_S)
        }
    }

    /** The set that an escape stands for; null where it is a character. */
    private fun escapedSet(word: CharSet, caseless: Boolean): CharSet? {
        val letter = if (at < text.length) text[at] else refuse("a backslash at its end")
        val set = when (letter.lowercaseChar()) {
            's' -> CharSet.space
            'd' -> CharSet.digit
            'w' -> word
            'h' -> CharSet.hexDigit
            'p' -> return property(caseless)
            else -> return null
        }
        at++
        return if (letter in 'A'..'Z') set.negate() else set
    }

    private fun property(caseless: Boolean): CharSet {
        val end = text.indexOf('}', at)
        if (end < 0 || at + 1 >= text.length || text[at + 1] != '{') refuse("\\p without a name")
        val name = text.substring(at + 2, end)
        val bits = CharSet.categories(name.removePrefix("^"))
        val cased = Category.LU.bit or Category.LL.bit or Category.LT.bit
        if (bits == 0 || caseless && bits and cased !in listOf(0, cased)) refuse("\\p{$name}")
        val negated = (text[at] == 'P') != name.startsWith("^")
        at = end + 1
        return CharSet.Builder().category(bits).build().let { if (negated) it.negate() else it }
    }

    /** The character that an escape stands for. */
    private fun escaped(): Int = when (val code = next()) {
        'n'.code -> '\n'.code
        'r'.code -> '\r'.code
        't'.code -> '\t'.code
        'f'.code -> 0x0c
        'v'.code -> 0x0b
        'a'.code -> 0x07
        'e'.code -> 0x1b
        'x'.code -> if (take("{")) hex(text.indexOf('}', at)).also { at++ } else hex(at + 2)
        'u'.code -> hex(at + 4)
        else -> if (Character.isLetterOrDigit(code) && code < 0x80) refuse("\\${code.toChar()}") else code
    }

    private fun hex(end: Int): Int {
        val digits = if (end in at..text.length) text.substring(at, end) else ""
        val code = digits.toIntOrNull(16) ?: -1
        if (code !in 0..0x10ffff) refuse("a character number that is none")
        at = end
        return code
    }

    private fun next(): Int {
        if (at >= text.length) refuse("an end too early")
        return text.codePointAt(at).also { at += Character.charCount(it) }
    }

    private fun take(wanted: String): Boolean = text.startsWith(wanted, at).also { if (it) at += wanted.length }

    private fun refuse(what: String): Nothing =
        throw BundleException("a regular expression has $what, which is not known here: $text")

    private companion object {
        val INTERVAL = Regex("\\{(?=[0-9]|,[0-9])([0-9]*)(,?)([0-9]*)\\}")
        const val MAX_COUNT = 1000
        const val LONG_S = 0x17f // the other lower-case s
    }
}
