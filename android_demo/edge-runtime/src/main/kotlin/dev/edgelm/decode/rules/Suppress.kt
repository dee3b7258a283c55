package dev.edgelm.decode.rules

/** Forbids some tokens (SuppressTokensLogitsProcessor). */
internal fun suppress(settings: RuleSettings): Processor? {
    val tokens = settings.bundle.suppress
    return if (tokens.isEmpty()) null else Processor { _, _, scores -> for (token in tokens) scores[token] = FORBIDDEN }
}
