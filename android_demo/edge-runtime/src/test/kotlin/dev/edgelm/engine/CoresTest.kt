package dev.edgelm.engine

import java.io.File
import java.nio.file.Path
import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** How many cores a process may use: what it is bound to, and the quotas of control groups. */
class CoresTest {
    @TempDir
    lateinit var folder: Path

    private val root get() = folder.toFile()

    private fun write(name: String, text: String) = File(root, name).apply { parentFile.mkdirs() }.writeText(text)

    private fun system(version: Int, groups: List<String>, quotas: List<Int?>) {
        for (depth in 0..groups.size) {
            val group = (listOf("sys/fs/cgroup") + groups.take(depth)).joinToString("/")
            if (version == 2) {
                write("$group/cpu.max", "${quotas[depth] ?: "max"} 100000\n")
            } else {
                write("$group/cpu.cfs_quota_us", "${quotas[depth] ?: -1}\n")
                write("$group/cpu.cfs_period_us", "100000\n")
            }
        }
        val path = "/" + groups.joinToString("/")
        write("proc/self/cgroup", if (version == 2) "0::$path\n" else "4:memory:/other\n3:cpu,cpuacct:$path\n0::/\n")
        val kind = if (version == 2) "cgroup2 cgroup2 rw" else "cgroup cgroup rw,cpu,cpuacct"
        write("proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup rw,relatime - $kind\n22 1 8:1 / / rw - ext4 /dev/sda rw\n")
    }

    @Test
    fun `the least quota of all nested groups counts`() {
        val random = Random(52)
        repeat(40) {
            root.listFiles()!!.forEach { it.deleteRecursively() }
            val groups = List(random.nextInt(5)) { "group-$it.slice" }
            val quotas = List(groups.size + 1) { if (random.nextBoolean()) random.nextInt(1, 1_600_000) else null }
            system(random.nextInt(1, 3), groups, quotas)
            val least = quotas.filterNotNull().minOrNull()
            assertEquals(least?.let { it / 100_000.0 }, cgroupCores(root))
            val whole = least?.let { (it + 99_999) / 100_000 } ?: 8
            assertEquals(minOf(8, whole), usableCores(8, root))
        }
    }

    @Test
    fun `cores that a process is bound to count, and what cannot be read does not`() {
        assertNull(cgroupCores(root))
        assertEquals(8, usableCores(8, root))
        for ((list, expected) in mapOf("0-3" to 4, "0-1,6" to 3, "5" to 1, "0-63" to 8, "" to 8, "a-b" to 8)) {
            write("proc/self/status", "Name:\tjava\nCpus_allowed_list:\t$list\n")
            assertEquals(expected, usableCores(8, root), list)
        }
        assertTrue(usableCores() in 1..Runtime.getRuntime().availableProcessors())
    }
}
