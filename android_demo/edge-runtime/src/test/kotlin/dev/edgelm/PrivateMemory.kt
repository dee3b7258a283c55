package dev.edgelm

import dev.edgelm.memory.ProcessMemory
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue

/** After [warmUp], [many] more of the same leave private memory where it is, within [limit] kB. */
fun assertFlat(limit: Int, warmUp: () -> Unit, many: () -> Unit) {
    assumeTrue(ProcessMemory.now() != null, "private memory is read from /proc")
    fun privateKb(): Long {
        System.gc()
        return ProcessMemory.now()!!.private / 1024
    }
    warmUp()
    val before = privateKb()
    many()
    val grown = privateKb() - before
    assertTrue(grown < limit) { "private memory grew by $grown kB" }
}
