package dev.edgelm.decode.rules

/** Leaves the k likeliest tokens, and those that are as likely as the last of them. */
internal fun topK(settings: RuleSettings): Threshold? {
    val count = settings.sampling.topK
    return if (count == 0) null else Threshold { left -> if (count < left.size) left.largest(count) else FORBIDDEN }
}
