package dev.edgelm.speech

import dev.edgelm.bundle.Speech
import kotlin.math.roundToInt

// Whisper was trained on windows of 30 s, most of them full or filled up with silence, and goes on after the end of a
// sound that has too little silence behind it: it says the text again.
private const val SILENCE_S = 3.0 // after a sound
private const val STEP_S = 1.0 // of lengths, so that there are few
private const val SAID = 6 // letters and digits: more than a word or two

/**
 * Samples that the encoder reads for a sound of [samples]: with silence after it, in whole steps, at most a window.
 */
internal fun encoderWindow(samples: Int, speech: Speech): Int {
    val step = (STEP_S * speech.sampleRate).roundToInt()
    val wanted = samples + (SILENCE_S * speech.sampleRate).roundToInt()
    return minOf((wanted + step - 1) / step * step, speech.windowSamples)
}

/** Whether a text says something twice in a row, whatever its punctuation and case. */
internal fun repeats(text: String): Boolean {
    val letters = folded(text)
    for (length in SAID..letters.size / 2) {
        var alike = 0 // letters in a row that are those of `length` letters later
        for (i in 0 until letters.size - length) {
            alike = if (letters[i] == letters[i + length]) alike + 1 else 0
            if (alike == length) return true
        }
    }
    return false
}

/** The letters and digits of a text, each without its case: Java has no case folding, but this is it, ß included. */
internal fun folded(text: String): IntArray {
    val found = ArrayList<Int>(text.length)
    var at = 0
    while (at < text.length) {
        val code = text.codePointAt(at)
        at += Character.charCount(code)
        val plain = String(Character.toChars(code)).uppercase().lowercase()
        var i = 0
        while (i < plain.length) {
            val letter = plain.codePointAt(i)
            i += Character.charCount(letter)
            if (Character.isLetter(letter) || Character.getType(letter) in NUMBERS) found += letter
        }
    }
    return found.toIntArray()
}

private val NUMBERS = listOf(Character.DECIMAL_DIGIT_NUMBER, Character.LETTER_NUMBER, Character.OTHER_NUMBER)
    .map { it.toInt() }
