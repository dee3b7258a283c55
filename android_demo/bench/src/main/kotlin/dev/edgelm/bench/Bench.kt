package dev.edgelm.bench

import ai.onnxruntime.OrtEnvironment
import com.sun.management.ThreadMXBean
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.GenerateOptions
import dev.edgelm.Timings
import java.io.File
import java.lang.management.ManagementFactory
import javax.management.ObjectName
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking

/** Answer a prompt a few times, and print what it took as one line of JSON. See compare.py. */
fun main(args: Array<String>) {
    val (path, prompt, tokens, rounds) = args
    val before = privateBytes()
    // On the caller's thread, so that what is allocated can be counted.
    EdgeModel.open(File(path), EdgeOptions(context = 1024), Dispatchers.Unconfined).use { model ->
        val options = GenerateOptions(tokens.toInt())
        val runs = List(rounds.toInt()) { run(model, prompt, options) }
        val threads = ManagementFactory.getThreadMXBean() as ThreadMXBean
        val allocated = threads.getThreadAllocatedBytes(Thread.currentThread().id)
        val collections = collections()
        val last = run(model, prompt, options)
        val bytes = (threads.getThreadAllocatedBytes(Thread.currentThread().id) - allocated) / last.generatedTokens
        val best = (runs + last).maxOf { it.tokensPerSecond ?: 0.0 }
        println(
            "{\"tokens_per_s\": $best, \"first_token_ms\": ${(runs + last).minOf { it.firstTokenMs }}, " +
                "\"tokens\": ${last.generatedTokens}, \"private_mb\": ${(privateBytes() - before) / 1e6}, " +
                "\"allocated_per_token\": $bytes, \"collections\": ${collections() - collections}, " +
                "\"onnxruntime\": \"${OrtEnvironment.getEnvironment().version}\"}",
        )
    }
}

private fun run(model: EdgeModel, prompt: String, options: GenerateOptions): Timings = runBlocking {
    lateinit var timings: Timings
    model.generate(prompt, options, raw = true).collect { piece -> piece.timings?.let { timings = it } }
    timings
}

private fun collections() = ManagementFactory.getGarbageCollectorMXBeans().sumOf { it.collectionCount }

/**
 * Bytes that the system cannot take back, less those of the Java machine itself: its compiler, code and classes, which
 * -XX:NativeMemoryTracking=summary tells. The heap is there from the start (-XX:+AlwaysPreTouch).
 */
private fun privateBytes(): Long {
    val anonymous = File("/proc/self/status").readLines().first { it.startsWith("RssAnon") }.filter { it.isDigit() }.toLong()
    val commands = ManagementFactory.getPlatformMBeanServer()
    val name = ObjectName("com.sun.management:type=DiagnosticCommand")
    val signature = arrayOf(Array<String>::class.java.name)
    val told = commands.invoke(name, "vmNativeMemory", arrayOf(arrayOf("summary")), signature) as String
    val own = COMMITTED.findAll(told).filter { it.groupValues[1].trim() !in NOT_ITS_OWN }.sumOf { it.groupValues[2].toLong() }
    return (anonymous - own) * 1024
}

private val COMMITTED = Regex("""- +([A-Z][A-Za-z ]+) \(reserved=\d+KB, committed=(\d+)KB\)""")
private val NOT_ITS_OWN = setOf("Java Heap", "Other") // "Other" are direct buffers
