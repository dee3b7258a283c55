package dev.edgelm.decode.rules

/** Forbids every token that would complete one of some runs of tokens (NoBadWordsLogitsProcessor). */
internal fun badWords(settings: RuleSettings): Processor? {
    if (settings.bundle.badWords.isEmpty()) return null
    val words = settings.bundle.badWords.map { it.toIntArray() }
    return Processor { text, length, scores ->
        for (word in words) {
            val begun = word.size - 1
            if (begun <= length && same(word, 0, text, length - begun, begun)) scores[word[begun]] = FORBIDDEN
        }
    }
}
