package dev.edgelm

import dev.edgelm.memory.ProcessMemory
import org.junit.jupiter.api.Assertions.fail
import org.junit.jupiter.api.Assumptions.assumeTrue

private const val ROUNDS = 3

/**
 * After [warmUp], [many] more of the same leave private memory where it is, within [limit] kB. A Java machine grows too, as
 * it compiles and collects: what leaks grows in each of several rounds.
 */
fun assertFlat(limit: Int, warmUp: () -> Unit, many: () -> Unit) {
    assumeTrue(ProcessMemory.now() != null, "private memory is read from /proc")
    fun privateKb(): Long {
        System.gc()
        return ProcessMemory.now()!!.private / 1024
    }
    warmUp()
    val grown = ArrayList<Long>()
    repeat(ROUNDS) {
        val before = privateKb()
        many()
        grown += privateKb() - before
        if (grown.last() < limit) return
    }
    fail<Unit>("private memory grew by $grown kB in as many rounds")
}
