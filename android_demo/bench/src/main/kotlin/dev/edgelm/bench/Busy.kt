package dev.edgelm.bench

import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.GenerateOptions
import dev.edgelm.Speculate
import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking

/** Answer a prompt once for each line that comes, and print tokens per second. See benchmarks/busy.py. */
object Busy {
    @JvmStatic
    fun main(args: Array<String>) {
        val (path, threads, tokens, prompt) = args
        val options = EdgeOptions(context = ASKED + tokens.toInt(), threads = threads.toInt(), speculate = Speculate.OFF)
        EdgeModel.open(File(path), options, Dispatchers.Unconfined).use { model ->
            while (readLine() != null) {
                var speed = 0.0
                runBlocking {
                    model.generate(prompt, GenerateOptions(tokens.toInt())).collect { piece ->
                        piece.timings?.let { speed = it.tokensPerSecond ?: 0.0 }
                    }
                }
                println(speed)
            }
        }
    }

    private const val ASKED = 128 // tokens of the prompt and of what surrounds it, at most
}
