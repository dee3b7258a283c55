package dev.edgelm.speech

import dev.edgelm.InputException
import dev.edgelm.bundle.Speech
import dev.edgelm.decode.Circling
import dev.edgelm.decode.SamplingOptions

/** What becomes of the words: the same language, or English. */
enum class Task { TRANSCRIBE, TRANSLATE }

/**
 * How sound is transcribed.
 *
 * @property language the code of the language that is spoken, such as "de"; null: heard in the first window with
 *   speech.
 * @property previousText give the model the text so far with the next window: names keep their spelling, but a wrong
 *   window may mislead the next.
 * @property skipSilence leave out stretches without any sound, from 1 second before a sound and 5 seconds after one.
 * @property temperatures tried one after the other until a text is good enough; 0 takes the likeliest tokens.
 * @property beams texts pursued at a time at temperature 0; 1 is greedy.
 * @property compressionRatioThreshold a text that zlib compresses by more repeats itself: try again. Null: any.
 * @property logprobThreshold a text whose mean log probability is lower is unsure: try again. Null: any.
 * @property noSpeechThreshold an unsure window whose chance of no speech is higher is skipped, and one of more than half of it
 *   whose text has nothing to do with the sound. Null: no window is.
 * @property seed of the draws at temperatures above 0; the same sound gives the same text.
 * @property circles where no other temperature would be tried for it: whether a text that repeats itself without end is led
 *   out of it.
 */
data class TranscribeOptions(
    val language: String? = null,
    val task: Task = Task.TRANSCRIBE,
    val previousText: Boolean = true,
    val skipSilence: Boolean = true,
    val temperatures: List<Double> = TEMPERATURES,
    val beams: Int = 1,
    val compressionRatioThreshold: Double? = REPETITIVE,
    val logprobThreshold: Double? = UNSURE,
    val noSpeechThreshold: Double? = 0.6,
    val seed: Long = 0,
    val circles: Circling = Circling.AVOID,
) {
    init {
        if (temperatures.isEmpty()) {
            throw InputException("There is no temperature to decode at; name at least one, such as 0.")
        }
        for (temperature in temperatures) sampling(temperature) // refuses what is out of its range
        if (beams < 1) throw InputException("The number of beams must be 1 or more, not $beams.")
        if (beams > 1 && 0.0 !in temperatures) {
            throw InputException(
                "$beams beams are for temperature 0, which is none of those given; leave out the beams or the temperature.",
            )
        }
    }

    internal fun sampling(temperature: Double) = SamplingOptions(temperature = temperature, seed = seed)

    /** InputException where a model does not know the language or the task. */
    internal fun check(speech: Speech) {
        val known = speech.languages.keys
        if (language != null && language !in known.ifEmpty { setOf("en") }) {
            if (known.isEmpty()) {
                throw InputException("This model understands English alone, not '$language'; leave the language out.")
            }
            val more = if (known.size > SHOWN) " and ${known.size - SHOWN} more" else ""
            throw InputException(
                "'$language' is not the code of a language that this model knows; it knows " +
                    "${known.take(SHOWN).joinToString(", ")}$more.", // Whisper's order: the most frequent come first
            )
        }
        val tasks = speech.tasks.keys.ifEmpty { setOf("transcribe") }
        if (task.code !in tasks) {
            throw InputException("The task must be one of ${tasks.joinToString(", ")} for this model, not '${task.code}'.")
        }
    }

    internal companion object {
        val TEMPERATURES = listOf(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

        // The reference's compression ratio and mean log probability of a text to try again.
        const val REPETITIVE = 2.4
        const val UNSURE = -1.0
        private const val SHOWN = 12 // languages named in an error
    }
}

/** Its name in the manifest. */
internal val Task.code: String get() = if (this == Task.TRANSCRIBE) "transcribe" else "translate"
