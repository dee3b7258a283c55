package dev.edgelm.decode.rules

/** Forbids some tokens as the first one that is generated (SuppressTokensAtBeginLogitsProcessor). */
internal fun beginSuppress(settings: RuleSettings): Processor? {
    val tokens = settings.bundle.beginSuppress
    if (tokens.isEmpty()) return null
    return Processor { _, length, scores -> if (length == settings.begin) for (token in tokens) scores[token] = FORBIDDEN }
}
