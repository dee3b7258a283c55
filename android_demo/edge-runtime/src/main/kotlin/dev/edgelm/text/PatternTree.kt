package dev.edgelm.text

internal enum class Greed { GREEDY, LAZY, POSSESSIVE }

/** A regular expression as it is written; [compile] makes the steps that match it and go on with [Node] next. */
internal sealed class Tree {
    abstract val canBeEmpty: Boolean

    /** How many steps it is compiled to, about: known before any is made. */
    abstract val steps: Long

    abstract fun compile(next: Node): Node
}

internal class Chars(val set: CharSet) : Tree() {
    override val canBeEmpty get() = false
    override val steps get() = 1L

    override fun compile(next: Node): Node = One(set, next)
}

internal class Chain(private val parts: List<Tree>) : Tree() {
    override val canBeEmpty get() = parts.all { it.canBeEmpty }
    override val steps = parts.sumOf { it.steps }

    override fun compile(next: Node): Node = parts.foldRight(next) { part, after -> part.compile(after) }
}

internal class Choice(private val parts: List<Tree>) : Tree() {
    override val canBeEmpty get() = parts.any { it.canBeEmpty }
    override val steps = 1 + parts.sumOf { it.steps }

    override fun compile(next: Node): Node = Either(Array(parts.size) { parts[it].compile(next) })
}

internal class Repeat(private val part: Tree, private val min: Int, private val max: Int, private val greed: Greed) :
    Tree() {
    override val canBeEmpty get() = min == 0 || part.canBeEmpty

    // Numbers in patterns are short, and what is large already need not be exact.
    override val steps = if (part is Chars) 1L else
        minOf(1 + part.steps, Int.MAX_VALUE.toLong()) * (1L + if (max == ENDLESS) min else max)

    override fun compile(next: Node): Node = when {
        part is Chars -> Many(part.set, min, max, greed, next)
        greed == Greed.POSSESSIVE -> Atomic(compileGroup(End), next)
        else -> compileGroup(next)
    }

    private fun compileGroup(next: Node): Node {
        val greedy = greed != Greed.LAZY
        var result: Node
        if (max == ENDLESS) {
            val loop = Loop(greedy, next)
            loop.body = part.compile(loop)
            result = loop
        } else {
            result = next
            repeat(max - min) {
                val once = part.compile(result)
                result = Either(if (greedy) arrayOf(once, next) else arrayOf(next, once))
            }
        }
        repeat(min) { result = part.compile(result) }
        return result
    }

    companion object {
        const val ENDLESS = Int.MAX_VALUE
    }
}

internal class AtomicGroup(private val part: Tree) : Tree() {
    override val canBeEmpty get() = part.canBeEmpty
    override val steps get() = 1 + part.steps

    override fun compile(next: Node): Node = Atomic(part.compile(End), next)
}

internal class LookAhead(private val part: Tree, private val wanted: Boolean) : Tree() {
    override val canBeEmpty get() = true
    override val steps get() = 1 + part.steps

    override fun compile(next: Node): Node = Ahead(part.compile(End), wanted, next)
}

internal class Anchor(private val edge: Char) : Tree() {
    override val canBeEmpty get() = true
    override val steps get() = 1L

    override fun compile(next: Node): Node = Edge(edge, next)
}
