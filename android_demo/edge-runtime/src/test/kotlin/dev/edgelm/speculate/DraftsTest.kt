package dev.edgelm.speculate

import dev.edgelm.Corpus
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.JsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.TestFactory

/** Drafters propose and planners choose what Python's do: `drafts.jsonl` of the corpus has both. */
class DraftsTest {
    @Serializable
    data class Proposed(val length: Int, val most: Int, val minChance: Double, val tokens: List<Int>, val grades: List<Int>)

    @Serializable
    data class Drafted(val drafter: String, val context: Int, val text: List<Int>, val begins: Int, val rounds: List<Proposed>)

    @Serializable
    data class Round(
        val context: Int,
        val most: Int,
        val budget: Int,
        val minChance: Double,
        val cut: Int,
        val tokens: List<Int>,
        val grades: List<Int>,
        val draftS: Double,
        val seconds: Double,
        val sampled: List<Int>,
    )

    @Serializable
    data class Answer(val drawn: Boolean, val rounds: List<Round>)

    @Serializable
    data class Planned(val planner: String, val width: Int, val multiple: Int, val answers: List<Answer>)

    private val json = Manifest.json

    private fun lines(bundle: Bundle, key: String): List<JsonObject> =
        Corpus.get("answers/${bundle.root.nameWithoutExtension}/drafts.jsonl").readLines().filter { it.isNotEmpty() }
            .map { json.parseToJsonElement(it) as JsonObject }.filter { key in it }

    private fun drafter(name: String, bundle: Bundle, context: Int): Drafter {
        val size = Lookup.indexSize(context)
        val table = bundle.manifest.files.any { it.path == Successors.FILE }
        return if (name == "lookup") Lookup(size) else Blend(size, if (table) Successors(bundle) else null)
    }

    @TestFactory
    fun `drafters propose what Python's do`(): List<DynamicTest> = Corpus.decoders().map { path ->
        dynamicTest(path.name) {
            val bundle = Bundle.open(path)
            val lines = lines(bundle, "drafter").map { json.decodeFromJsonElement(Drafted.serializer(), it) }
            assertTrue(lines.map { it.drafter }.toSet() == setOf("lookup", "blend"))
            for (line in lines) {
                val drafter = drafter(line.drafter, bundle, line.context)
                drafter.begin(line.text.take(line.begins).toIntArray())
                var length = line.begins
                for (round in line.rounds) {
                    val new = line.text.subList(length, round.length).toIntArray()
                    drafter.accept(new, new.size)
                    length = round.length
                    val draft = Draft(round.most)
                    drafter.propose(round.most, round.minChance, draft)
                    val what = "${line.drafter} after $length of ${line.text.size} tokens"
                    assertEquals(round.tokens, draft.tokens.take(draft.size), what)
                    assertEquals(round.grades, draft.grades.take(draft.size), what)
                }
            }
        }
    }

    @TestFactory
    fun `planners choose what Python's do`(): List<DynamicTest> = Corpus.decoders().map { path ->
        dynamicTest(path.name) {
            val bundle = Bundle.open(path)
            val lines = lines(bundle, "planner").map { json.decodeFromJsonElement(Planned.serializer(), it) }
            assertTrue(lines.isNotEmpty())
            for (line in lines) {
                val costs = StepCosts(null, line.width, line.multiple)
                val planner = Planner(drafter(line.planner, bundle, 1).priors, costs, line.width)
                for ((number, answer) in line.answers.withIndex()) {
                    planner.begin(answer.drawn)
                    for ((i, round) in answer.rounds.withIndex()) check(planner, round, "answer $number, round $i")
                }
            }
        }
    }

    private fun check(planner: Planner, round: Round, what: String) {
        assertEquals(round.budget, planner.budget(round.most, round.context), what)
        assertEquals(round.minChance, planner.minChance, 1e-12, what)
        val draft = Draft(round.tokens.size)
        for ((token, grade) in round.tokens.zip(round.grades)) draft.add(token, grade)
        if (round.budget > 0) planner.drafted(draft.size, round.draftS)
        assertEquals(round.cut, planner.cut(draft, draft.size), what)
        planner.costs.took(round.cut + 1, round.seconds)
        planner.observe(draft, round.sampled.toIntArray(), round.sampled.size)
    }
}
