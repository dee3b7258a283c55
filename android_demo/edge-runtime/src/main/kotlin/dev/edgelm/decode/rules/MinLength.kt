package dev.edgelm.decode.rules

/** Forbids the end tokens before a text has a minimum of tokens (MinLengthLogitsProcessor). */
internal fun minLength(settings: RuleSettings): Processor? {
    val least = settings.minTokens?.let { settings.begin + it } ?: settings.bundle.minLength // with the first ones
    if (least <= settings.begin) return null
    return Processor { _, length, scores -> if (length < least) for (token in settings.eos) scores[token] = FORBIDDEN }
}
