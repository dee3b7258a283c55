package dev.edgelm.memory

import java.io.File
import java.io.IOException

/** Bytes of this process: resident ones now and at most so far, and private ones, which the system cannot take back. */
class ProcessMemory private constructor(val resident: Long, val peakResident: Long, val private: Long) {
    companion object {
        private val PRIVATE = listOf("RssAnon", "RssShmem", "VmSwap")

        /** What Linux says of it, as Android does; null where the system does not tell. */
        fun now(): ProcessMemory? {
            val lines = try {
                File("/proc/self/status").readLines()
            } catch (_: IOException) {
                return null
            }
            val bytes = lines.filter { it.endsWith(" kB") }.associate { line ->
                line.substringBefore(':') to 1024 * line.filter(Char::isDigit).toLong()
            }
            val resident = bytes["VmRSS"] ?: return null
            return ProcessMemory(resident, bytes["VmHWM"] ?: resident, PRIVATE.sumOf { bytes[it] ?: 0 })
        }
    }
}
