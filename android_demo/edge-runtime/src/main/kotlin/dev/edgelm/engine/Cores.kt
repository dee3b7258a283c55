package dev.edgelm.engine

import java.io.File
import java.io.IOException
import kotlin.math.ceil

/**
 * The cores that this process may use: the fewest of those that the machine has, those that it is bound to, and those
 * that its control groups' share of processor time amounts to. A Java machine knows the second and the third, Android
 * neither. More threads than the share has cores wait for each other while the system stops them.
 */
internal fun usableCores(
    machine: Int = Runtime.getRuntime().availableProcessors(),
    root: File = File("/"),
): Int {
    val quota = cgroupCores(root)?.let { ceil(it).toInt() }
    return listOfNotNull(machine, allowedCores(root), quota).min().coerceAtLeast(1)
}

/** Cores that this process is bound to, by the list that Linux shows: `0-3,6`. */
private fun allowedCores(root: File): Int? {
    val list = lines(root, "proc/self/status").firstOrNull { it.startsWith("Cpus_allowed_list:") } ?: return null
    val ranges = list.substringAfter(':').trim().split(',').map { range -> range.split('-').map { it.toIntOrNull() } }
    val sizes = ranges.map { (it.last() ?: return null) - (it.first() ?: return null) + 1 }
    return sizes.sum().takeIf { it > 0 }
}

/**
 * Cores' worth of processor time that this process's control groups allow, of version 1 and 2: the least of its own
 * and of all that it is nested in. Null where none limits it, or they cannot be read, as on most phones.
 */
internal fun cgroupCores(root: File): Double? {
    val paths = HashMap<String, String>() // of version 2's group, and of version 1's that limits processor time
    for (line in lines(root, "proc/self/cgroup")) {
        val (_, controllers, path) = line.split(':', limit = 3).takeIf { it.size == 3 } ?: continue
        if (controllers.isEmpty()) paths["cgroup2"] = path
        if ("cpu" in controllers.split(',')) paths["cgroup"] = path
    }
    return lines(root, "proc/self/mountinfo").flatMap { groups(root, it, paths) }.mapNotNull(::quota).minOrNull()
}

/** The folders of the groups that one mounted hierarchy has for this process, the innermost first. */
private fun groups(root: File, mount: String, paths: Map<String, String>): List<File> {
    val place = mount.substringBefore(" - ").split(' ')
    val kind = mount.substringAfter(" - ", "").split(' ')
    val own = paths[kind.first()] ?: return emptyList()
    if (place.size < 5 || (kind.first() == "cgroup" && "cpu" !in kind.last().split(','))) return emptyList()
    val (start, folder) = place.subList(3, 5).map { it.replace("\\040", " ") }
    val inside = own == start || own.startsWith(start.trimEnd('/') + "/")
    val names = if (inside) own.removePrefix(start).split('/').filter { it.isNotEmpty() } else emptyList()
    val depth = if (".." in names) 0 else names.size
    return (depth downTo 0).map { File(root, (listOf(folder) + names.take(it)).joinToString("/")) }
}

private fun quota(group: File): Double? {
    val two = lines(group, "cpu.max").firstOrNull()?.split(' ')
    val one = listOf("quota", "period").mapNotNull { lines(group, "cpu.cfs_${it}_us").firstOrNull() }
    val (quota, period) = (two ?: one).takeIf { it.size == 2 }?.map { it.trim().toLongOrNull() } ?: return null
    if (quota == null || period == null || quota <= 0 || period <= 0) return null // "max" and -1 limit nothing
    return quota.toDouble() / period
}

private fun lines(folder: File, name: String): List<String> = try {
    File(folder, name).readLines()
} catch (e: IOException) {
    emptyList()
}
