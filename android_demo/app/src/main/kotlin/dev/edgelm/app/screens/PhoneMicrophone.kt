package dev.edgelm.app.screens

import android.annotation.SuppressLint
import android.media.AudioFormat
import android.media.AudioRecord
import android.media.MediaRecorder
import dev.edgelm.InputException
import dev.edgelm.app.dictate.Microphone
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow

/** The phone's microphone, whose flow blocks the thread that collects it. The screen asks for the permission. */
class PhoneMicrophone : Microphone {
    override fun record(rate: Int): Flow<ShortArray> = flow {
        val recorder = open(rate)
        try {
            recorder.startRecording()
            if (recorder.recordingState != AudioRecord.RECORDSTATE_RECORDING) throw InputException(TAKEN)
            while (true) {
                val chunk = ShortArray(rate / CHUNKS_PER_SECOND)
                val count = recorder.read(chunk, 0, chunk.size)
                if (count < 0) throw InputException(TAKEN)
                emit(if (count == chunk.size) chunk else chunk.copyOf(count))
            }
        } finally {
            recorder.release()
        }
    }

    @SuppressLint("MissingPermission")
    private fun open(rate: Int): AudioRecord {
        val least = AudioRecord.getMinBufferSize(rate, AudioFormat.CHANNEL_IN_MONO, AudioFormat.ENCODING_PCM_16BIT)
        val bytes = maxOf(least, 2 * rate) // a second, for a phone that is busy
        val recorder = try {
            AudioRecord(
                MediaRecorder.AudioSource.VOICE_RECOGNITION, rate, AudioFormat.CHANNEL_IN_MONO, AudioFormat.ENCODING_PCM_16BIT, bytes,
            )
        } catch (_: IllegalArgumentException) {
            throw InputException("This phone cannot record $rate samples a second.")
        }
        if (recorder.state == AudioRecord.STATE_INITIALIZED) return recorder
        recorder.release()
        throw InputException(TAKEN)
    }

    private companion object {
        const val CHUNKS_PER_SECOND = 10
        const val TAKEN = "The microphone cannot be used now: another app may hold it."
    }
}
