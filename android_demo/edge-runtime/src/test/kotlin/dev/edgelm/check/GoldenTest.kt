package dev.edgelm.check

import dev.edgelm.Corpus
import dev.edgelm.bundle.Bundle
import dev.edgelm.engine.Engine
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.TestFactory

class GoldenTest {
    @TestFactory
    fun `recorded answers are replayed in every graph`(): List<DynamicTest> = Corpus.bundles().flatMap { path ->
        val bundle = Bundle.open(path)
        val roles = listOf(Engine.DECODER, Engine.KV8, Engine.PREFILL, Engine.SKIP).filter { bundle.manifest.graph(it) != null }
        roles.map { role ->
            dynamicTest("${path.name} $role") {
                val report = replayGolden(bundle, role)
                assertEquals(emptyList<String>(), report.faults)
                assertTrue(report.tokens > 0)
                println("${path.name} $role: ${report.tokens} tokens, ${report.nearTies} near-ties, distances ${report.largestDifference}")
            }
        }
    }
}
