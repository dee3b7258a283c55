package dev.edgelm.decode.rules

/** Makes a token the last one of the maximum (ForcedEOSTokenLogitsProcessor). */
internal fun forcedEnd(settings: RuleSettings): Processor? {
    val token = settings.bundle.forcedEos ?: return null
    return Processor { _, length, scores ->
        if (length == settings.most - 1) {
            scores.fill(FORBIDDEN)
            scores[token] = 0f
        }
    }
}
