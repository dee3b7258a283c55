package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import java.io.File
import org.junit.jupiter.api.Assumptions.assumeTrue

/** What Python wrote for these tests: bundles that it exported, and what its runtime answers with them. */
object Corpus {
    private val folder: String? = System.getProperty("edge.corpus")?.takeIf { it.isNotEmpty() }

    /** A file or folder of it; the test is skipped where there is no corpus. */
    fun get(name: String): File {
        assumeTrue(folder != null, "no corpus was written: tests/android starts these tests with one")
        return File(folder, name).also { check(it.exists()) { "the corpus has no $it" } }
    }

    /** The bundles by name. */
    fun bundles(): List<File> = get("bundles").listFiles()!!.filter { it.name.endsWith(".edge") }.sorted()

    fun decoders(): List<File> = of { it.kind == "decoder" }

    /** Of models from text to text. */
    fun text2text(): List<File> = of { it.text != null }

    /** Of speech models. */
    fun speakers(): List<File> = of { it.speech != null }

    private fun of(kind: (Manifest) -> Boolean) = bundles().filter { kind(Bundle.open(it).manifest) }
}
