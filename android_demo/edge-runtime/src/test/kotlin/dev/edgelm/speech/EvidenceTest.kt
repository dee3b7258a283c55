package dev.edgelm.speech

import dev.edgelm.Corpus
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class EvidenceTest {
    @Serializable
    private data class Case(
        val text: List<Int>,
        val likelier: List<Double>,
        val repeated: List<Boolean>,
        val imagined: Boolean,
        val weak: Boolean,
    )

    @Test
    fun `words are imagined or weak where Python says so`() {
        val cases = Corpus.get("evidence.jsonl").readLines().map { Json.decodeFromString<Case>(it) }
        assertTrue(cases.count { it.imagined } in 100..cases.size - 100)
        assertTrue(cases.count { true in it.repeated } in 100..cases.size - 100)
        for (case in cases) {
            assertEquals(case.repeated, saidBefore(case.text.toIntArray()).asList(), "${case.text}")
            val evidence = Evidence(case.likelier, case.repeated)
            assertEquals(case.imagined, evidence.isImagined, "$case")
            assertEquals(case.weak, evidence.isWeak, "$case")
        }
    }
}
