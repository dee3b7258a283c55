package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.engine.Encoder
import dev.edgelm.engine.Engine
import dev.edgelm.memory.Plan
import dev.edgelm.memory.speechPlan
import dev.edgelm.speech.FloatSamples
import dev.edgelm.speech.Samples
import dev.edgelm.speech.Segment
import dev.edgelm.speech.ShortSamples
import dev.edgelm.speech.TranscribeOptions
import dev.edgelm.speech.Transcription
import dev.edgelm.text.Tokenizer
import java.io.File
import java.nio.ShortBuffer
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.Flow

/**
 * A speech bundle in memory: sound in, text out. Several threads may use it; [close] it when nothing more is to be
 * transcribed.
 */
class EdgeTranscriber private constructor(
    val bundle: Bundle,
    /** What it takes, as it was planned before it was loaded, for one transcription at a time. */
    val plan: Plan,
    private val engine: Engine,
    private val tokenizer: Tokenizer,
    private val memory: Long?,
    private val dispatcher: CoroutineDispatcher,
) : AutoCloseable {
    private val speech = bundle.manifest.speech!!
    private var spare: Encoder.Room? = null // of the last transcription: the next one needs as much
    private var closed = false

    /** Samples a second that the model hears. */
    val sampleRate: Int get() = speech.sampleRate

    /** The codes of the languages that it knows, the most frequent first; empty where it knows English alone. */
    val languages: List<String> get() = speech.languages.keys.toList()

    /**
     * Transcribe mono sound of full scale 1, segment by segment as they become certain. Cancelling the flow's collector
     * ends it before the next step. The array must stay as it is until then.
     *
     * The flow throws an InputException where the [sampleRate] is not the model's, the model does not know the language
     * or task, memory was planned for fewer beams, a sample is no number, or there is less than 0.1 s of sound. Without any samples there are no segments.
     */
    fun transcribe(
        pcm: FloatArray, options: TranscribeOptions = TranscribeOptions(), sampleRate: Int = this.sampleRate,
    ): Flow<Segment> = segments(options, sampleRate) { FloatSamples(pcm).also { it.check(sampleRate) } }

    /** As the other, for the 16-bit samples that microphones give. */
    fun transcribe(
        pcm: ShortArray, options: TranscribeOptions = TranscribeOptions(), sampleRate: Int = this.sampleRate,
    ): Flow<Segment> = transcribe(ShortBuffer.wrap(pcm), options, sampleRate)

    /** As the others, from the buffer's begin to its limit: a recording in a file may be mapped, and takes no memory. */
    fun transcribe(
        pcm: ShortBuffer, options: TranscribeOptions = TranscribeOptions(), sampleRate: Int = this.sampleRate,
    ): Flow<Segment> = segments(options, sampleRate) { ShortSamples(pcm) }

    private fun segments(options: TranscribeOptions, rate: Int, samples: () -> Samples): Flow<Segment> = streaming(dispatcher) { goOn ->
        if (rate != sampleRate) {
            throw InputException(
                "The sound has $rate samples a second and ${bundle.manifest.name} hears $sampleRate; resample it first.",
            )
        }
        options.check(speech)
        plan.checkBeams(options.beams, memory)
        val room = takeRoom()
        try {
            Transcription(engine, tokenizer, samples(), options, room, goOn).use { running ->
                while (true) for (segment in running.next() ?: break) emit(segment)
            }
        } finally {
            giveBack(room)
        }
    }

    @Synchronized
    private fun takeRoom(): Encoder.Room = (spare ?: Encoder.Room()).also { spare = null }

    @Synchronized
    private fun giveBack(room: Encoder.Room) {
        if (closed || spare != null) room.close() else spare = room
    }

    /** Give memory back that is kept for speed; for an app's `onTrimMemory`. Transcriptions that run go on. */
    @Synchronized
    fun trim() {
        engine.trim()
        spare?.close()
        spare = null
    }

    /** Wait for the step that runs, if any, then release everything. What goes on ends with an EdgeException. */
    override fun close() {
        engine.close()
        synchronized(this) {
            closed = true
            spare?.close()
            spare = null
        }
    }

    companion object {
        /**
         * Open a bundle: check its files, plan its memory, load it. Of the [options] the context is the model's own, and
         * keys and values are floats.
         *
         * @throws BundleException it is damaged, too new, or no speech model's.
         * @throws InputException an option is out of its range, or it does not fit into the memory.
         */
        fun open(
            path: File, options: EdgeOptions = EdgeOptions(), dispatcher: CoroutineDispatcher = Dispatchers.Default,
        ): EdgeTranscriber {
            val loaded = Loaded.open(path, options, ::speechPlan) { manifest ->
                if (manifest.speech != null) null else "reads text; only a bundle of a speech model transcribes sound."
            }
            return with(loaded) { EdgeTranscriber(bundle, plan, engine, tokenizer, options.memory, dispatcher) }
        }
    }
}
