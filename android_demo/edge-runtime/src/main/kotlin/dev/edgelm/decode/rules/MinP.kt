package dev.edgelm.decode.rules

/** Leaves out tokens less likely than this share of the likeliest one, whose weight is 1. */
internal fun minP(settings: RuleSettings): Threshold? {
    val share = settings.sampling.minP.toFloat()
    return if (share > 0) Threshold { share } else null
}
