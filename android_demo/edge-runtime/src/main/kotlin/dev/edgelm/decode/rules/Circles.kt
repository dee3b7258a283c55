package dev.edgelm.decode.rules

/**
 * Follows one greedy answer to [prompt] and finds where it repeats itself without end: see Python's
 * `edge.runtime.decode.rules.circles`, whose rule this is. [losses]: by how much the logits of some tokens are lowered for the next
 * choice; mostly of none.
 */
internal class Circles private constructor(
    private val prompt: IntArray,
    private var text: IntArray,
    private val last: HashMap<List<Int>, Int>, // the place behind the last occurrence of each run of GRAM tokens
    private var before: IntArray, // for each place, that behind the occurrence before; -1: none
    private var repeated: IntArray, // before each place, how many tokens ended a run that had occurred
) {
    constructor(prompt: IntArray) : this(prompt, IntArray(ROOM), HashMap(), IntArray(ROOM), IntArray(ROOM + 1))

    var losses: Map<Int, Float> = emptyMap()
        private set
    private var grace = -1 // tokens that may be said again because the prompt says such; -1: not looked at
    private var left = 0 // circles
    private var size = 0
    private var at = -1 // the place that says how the text goes on if it goes on repeating; -1: it does not repeat
    private var length = 0 // tokens before it that are those before the text's end

    /** The text goes on with [token]. */
    fun push(token: Int) {
        if (losses.isNotEmpty() && token !in losses) left++
        follow(token)
        losses = if (at < 0) emptyMap() else lost()
    }

    /** The same text so far, to go on by itself. */
    fun copy() = Circles(prompt, text.copyOf(), HashMap(last), before.copyOf(), repeated.copyOf()).also {
        it.losses = losses
        it.grace = grace
        it.left = left
        it.size = size
        it.at = at
        it.length = length
    }

    /** See what the text repeats after its next token. */
    private fun follow(token: Int) {
        if (size == text.size) grow()
        if (at >= 0 && text[at] == token) {
            at++
            length++
        } else {
            at = -1
        }
        text[size++] = token
        val found = if (size < GRAM) -1 else last.put(List(GRAM) { text[size - GRAM + it] }, size) ?: -1
        if (at < 0 && found >= 0) {
            at = found
            length = GRAM
            while (length < found && text[found - 1 - length] == text[size - 1 - length]) length++
        }
        before[size - 1] = found
        repeated[size] = repeated[size - 1] + if (found >= 0) 1 else 0
    }

    /** What follows every earlier occurrence of the last tokens, where it may not be said again. */
    private fun lost(): Map<Int, Float> {
        val run = length + 1 - allowed(size - at)
        val recent = repeated[size] - repeated[maxOf(0, size - WINDOW)] - SHARE
        var over = maxOf(run, recent, repeated[size] - maxOf(FEW, size - repeated[size]))
        if (over <= 0) return emptyMap()
        if (grace < 0) grace = 2 * longestCircle(prompt)
        over -= grace
        if (over <= 0) return emptyMap()
        val loss = PUSH * (1 shl minOf(left, DOUBLINGS)) * over
        val lost = HashMap<Int, Float>()
        var place = before[size - 1]
        while (place >= 0) {
            lost[text[place]] = loss
            place = before[place - 1]
        }
        return lost
    }

    /** How many tokens may be said again without a gap, in a circle of [period]. */
    private fun allowed(period: Int): Int {
        if (left > 0) return GRAM
        return maxOf(LEAST, minOf(period + MORE, maxOf(period, LONG), size - repeated[size]))
    }

    private fun grow() {
        text = text.copyOf(2 * size)
        before = before.copyOf(2 * size)
        repeated = repeated.copyOf(2 * size + 1)
    }

    private companion object {
        const val ROOM = 64 // tokens, at first
        const val GRAM = 7
        const val LEAST = 16
        const val MORE = 24
        const val LONG = 64
        const val FEW = 40
        const val WINDOW = 128
        const val SHARE = 104
        const val PUSH = 1f
        const val DOUBLINGS = 5

        /** The most tokens in a text that say again what was said twice before, without a gap. */
        fun longestCircle(text: IntArray): Int {
            val circles = Circles(IntArray(0))
            var found = 0
            for (token in text) {
                circles.follow(token)
                if (circles.at >= 0 && circles.length >= 2 * (circles.size - circles.at)) found = maxOf(found, circles.length)
            }
            return found
        }
    }
}
