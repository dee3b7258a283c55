package dev.edgelm.bench

import ai.onnxruntime.OrtEnvironment
import com.sun.management.ThreadMXBean
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.EdgeText2Text
import dev.edgelm.EdgeTranscriber
import dev.edgelm.GenerateOptions
import dev.edgelm.Speculate
import dev.edgelm.Text2TextOptions
import dev.edgelm.Timings
import dev.edgelm.bundle.Bundle
import java.io.File
import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.nio.ByteOrder
import javax.management.ObjectName
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking

/** Answer a prompt a few times, and print what it took as one line of JSON. See compare.py. */
fun main(args: Array<String>) {
    val (path, prompt, tokens, rounds, speculate) = args
    val before = privateBytes()
    subject(File(path), prompt, tokens.toInt(), Speculate.valueOf(speculate)).use { subject ->
        val runs = List(rounds.toInt()) { subject.run() }
        val threads = ManagementFactory.getThreadMXBean() as ThreadMXBean
        val allocated = threads.getThreadAllocatedBytes(Thread.currentThread().id)
        val collections = collections()
        val last = subject.run()
        val bytes = (threads.getThreadAllocatedBytes(Thread.currentThread().id) - allocated) / last.tokens
        println(
            "{\"tokens_per_s\": ${(runs + last).maxOf { it.tokensPerSecond }}, " +
                "\"first_token_ms\": ${(runs + last).minOf { it.firstMs }}, " +
                "\"tokens\": ${last.tokens}, \"private_mb\": ${(privateBytes() - before) / 1e6}, " +
                "\"allocated_per_token\": $bytes, \"collections\": ${collections() - collections}, " +
                "\"onnxruntime\": \"${OrtEnvironment.getEnvironment().version}\"}",
        )
    }
}

/** What one answer took; [firstMs] is the time to its first token or segment. */
private class Run(val tokens: Int, val tokensPerSecond: Double, val firstMs: Double)

/** A model with something to answer again and again, on the caller's thread, so that what is allocated can be counted. */
private class Subject(private val model: AutoCloseable, private val answer: suspend () -> Run) : AutoCloseable by model {
    fun run(): Run = runBlocking { answer() }
}

private fun subject(path: File, prompt: String, tokens: Int, speculate: Speculate): Subject {
    val manifest = Bundle.open(path).manifest
    if (manifest.speech != null) return transcriber(path, File(prompt))
    if (manifest.text != null) return translator(path, prompt.lines(), tokens)
    val model = EdgeModel.open(path, EdgeOptions(context = 1024, speculate = speculate), Dispatchers.Unconfined)
    return Subject(model) {
        lateinit var timings: Timings
        model.generate(prompt, GenerateOptions(tokens), raw = true).collect { piece -> piece.timings?.let { timings = it } }
        Run(timings.generatedTokens, timings.tokensPerSecond ?: 0.0, timings.firstTokenMs)
    }
}

/** All texts, one after the other; the encoder's time counts. */
private fun translator(path: File, texts: List<String>, tokens: Int): Subject {
    val model = EdgeText2Text.open(path, EdgeOptions(), Dispatchers.Unconfined)
    val options = Text2TextOptions(maxTokens = tokens, beams = 1)
    return Subject(model) {
        val begun = System.nanoTime()
        var count = 0
        var first = 0.0
        for (text in texts) {
            model.generate(text, options).collect { piece ->
                piece.timings?.let {
                    count += it.generatedTokens
                    if (first == 0.0) first = it.firstTokenMs
                }
            }
        }
        Run(count, count * 1e9 / (System.nanoTime() - begun), first)
    }
}

/** A recording of little-endian float32 samples. */
private fun transcriber(path: File, recording: File): Subject {
    val model = EdgeTranscriber.open(path, EdgeOptions(), Dispatchers.Unconfined)
    val samples = ByteBuffer.wrap(recording.readBytes()).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    val pcm = FloatArray(samples.remaining()).also { samples.get(it) }
    return Subject(model) {
        val begun = System.nanoTime()
        var count = 0
        var first = 0.0
        model.transcribe(pcm).collect { segment ->
            if (first == 0.0) first = (System.nanoTime() - begun) / 1e6
            count += segment.tokens.size
        }
        Run(count, count * 1e9 / (System.nanoTime() - begun), first)
    }
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
