package dev.edgelm.decode.rules

/** Forbids every token that would complete an n-gram which the text has already (NoRepeatNGramLogitsProcessor). */
internal fun noRepeatNgram(settings: RuleSettings): Processor? {
    val size = settings.noRepeatNgram ?: settings.bundle.noRepeatNgramSize
    if (size == 0) return null
    return Processor { text, length, scores ->
        for (start in 0..length - size) {
            if (same(text, start, text, length + 1 - size, size - 1)) scores[text[start + size - 1]] = FORBIDDEN
        }
    }
}
