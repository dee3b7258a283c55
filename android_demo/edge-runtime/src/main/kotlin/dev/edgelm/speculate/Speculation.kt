package dev.edgelm.speculate

import dev.edgelm.Drafting
import dev.edgelm.InputException
import dev.edgelm.Speculate
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.memory.Plan
import dev.edgelm.profile.CostCurve
import java.util.concurrent.atomic.AtomicBoolean

/**
 * A drafter and its planner at work for one model, answer after answer: what an answer teaches, the next one knows. One
 * answer has them at a time; others meanwhile have no drafts.
 */
internal class Speculation(val drafter: Drafter, val planner: Planner, val width: Int) {
    val taken = AtomicBoolean()

    companion object {
        private const val LOGITS = 8 shl 20 // maximum bytes of the rows of logits of one step
        private const val OWN_TABLES = 8 // tokens of a step from which on the bundle's table for drafts is kept

        /** Maximum tokens of a step, the one before the draft included, that a memory budget chooses from. */
        private val WIDTHS = listOf(16, 8, 4, 2)

        /** How many tokens a step may have, the preferred first: each has a row of logits. The last is 1, without drafts. */
        fun widths(manifest: Manifest): List<Int> {
            val widest = (LOGITS / (4 * manifest.dims.vocabSize)).coerceIn(WIDTHS.last(), WIDTHS.first())
            return listOf(widest) + WIDTHS.filter { it < widest } + 1
        }

        /** What drafts for a bundle; InputException where it is asked for and cannot. */
        fun chosen(asked: Speculate, manifest: Manifest): Speculate = when {
            manifest.encoder == null -> if (asked == Speculate.AUTO) Speculate.BLEND else asked
            asked == Speculate.AUTO || asked == Speculate.OFF -> Speculate.OFF
            else -> throw InputException("${manifest.name} has an encoder, and such models do not draft; leave the choice out.")
        }

        /** Bytes of what drafts for texts of up to [context] tokens in steps of up to [width]. */
        fun bytes(chosen: Speculate, manifest: Manifest, context: Int, width: Int): Long {
            if (chosen == Speculate.OFF || width == 1) return 0
            val tokens = Lookup.indexSize(context).toLong()
            if (chosen == Speculate.LOOKUP) return tokens * Lookup.PLACE
            return tokens * (Lookup.PLACE + COUNTS) + if (width < OWN_TABLES) 0 else manifest.size(Successors.FILE)
        }

        private const val COUNTS = 6 // bytes of `Blend`'s counts for each token of the index

        /** What drafts, as it was planned; null where nothing does; BundleException where the bundle's table is damaged. */
        fun make(asked: Speculate, bundle: Bundle, plan: Plan, curve: CostCurve?): Speculation? {
            val chosen = chosen(asked, bundle.manifest)
            if (plan.width == 1) return null
            val size = Lookup.indexSize(plan.context)
            val table = if (plan.width < OWN_TABLES || bundle.manifest.size(Successors.FILE) == 0L) null else bundle
            val drafter = if (chosen == Speculate.LOOKUP) Lookup(size) else Blend(size, table?.let(::Successors))
            val costs = StepCosts(curve, plan.width, multiple = 2) // steps run even numbers of tokens
            return Speculation(drafter, Planner(drafter.priors, costs, plan.width), plan.width)
        }
    }
}

/**
 * The drafts of one answer of up to [most] tokens. [ends]: tokens that end it. [drawn]: whether its tokens are drawn at
 * random.
 */
internal class AnswerDrafts(
    private val speculation: Speculation,
    private val prompt: IntArray,
    private val most: Int,
    private val ends: IntArray,
    private val drawn: Boolean,
) : AutoCloseable {
    private val planner = speculation.planner
    private val drafter = speculation.drafter
    private var drafts = false
    private var said = 0
    private var steps = 0
    private var drafted = 0
    private var accepted = 0

    /** The proposed tokens, of which [propose] says how many are to be run. */
    val draft = Draft(speculation.width - 1)

    /** What came of them. */
    val figures: Drafting get() = Drafting(steps, drafted, accepted)

    /** The answer's [first] token was chosen from the prompt's logits. */
    fun begin(first: IntArray) {
        said = 1
        drafts = speculation.taken.compareAndSet(false, true)
        if (!drafts) return
        drafter.begin(prompt)
        drafter.accept(first, 1)
        planner.begin(drawn)
    }

    /** Draft what may come next; how many tokens of it pay. */
    fun propose(engine: Engine, cache: KvCache): Int {
        draft.size = 0
        if (!drafts) return 0
        val begun = System.nanoTime()
        val room = minOf(engine.maxExactStep(cache), most - said)
        val budget = planner.budget(room - 1, cache.length)
        if (budget <= 0) return 0
        drafter.propose(budget, planner.minChance, draft)
        planner.drafted(draft.size, (System.nanoTime() - begun) / 1e9)
        // An end token comes from the row before it anyway.
        var size = 0
        while (size < draft.size && draft.tokens[size] !in ends) size++
        return if (draft.size == 0) 0 else planner.cut(draft, size)
    }

    /** A step of [size] tokens took [seconds]; the text goes on with the first [count] of [sampled]. */
    fun accept(size: Int, seconds: Double, sampled: IntArray, count: Int) {
        steps++
        said += count
        if (!drafts) return
        if (size > 1) {
            drafted += size - 1
            accepted += count - 1
        }
        planner.costs.took(size, seconds)
        planner.observe(draft, sampled, count)
        drafter.accept(sampled, count)
    }

    /** The answer ended: another one may have the drafter. */
    override fun close() {
        if (drafts) speculation.taken.set(false)
        drafts = false
    }
}
