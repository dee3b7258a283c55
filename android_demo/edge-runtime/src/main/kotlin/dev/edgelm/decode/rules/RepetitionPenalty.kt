package dev.edgelm.decode.rules

/** Makes tokens that occurred less likely (RepetitionPenaltyLogitsProcessor). */
internal fun repetitionPenalty(settings: RuleSettings): Processor? =
    (settings.sampling.repetitionPenalty ?: settings.bundle.repetitionPenalty).takeIf { it != 1.0 }?.let(::RepetitionPenalty)

private class RepetitionPenalty(penalty: Double) : Processor {
    private val penalty = penalty.toFloat()
    private var before = FloatArray(0) // so that a token that occurred twice is not penalized twice

    override fun process(text: IntArray, length: Int, scores: FloatArray) {
        if (before.size < length) before = FloatArray(2 * length)
        for (i in 0 until length) before[i] = scores[text[i]]
        for (i in 0 until length) scores[text[i]] = before[i].let { if (it < 0) it * penalty else it / penalty }
    }
}
