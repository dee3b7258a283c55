package dev.edgelm

import dev.edgelm.decode.SamplingOptions

/** What ended an answer. */
enum class FinishReason {
    /** An end token, or a stop string. */
    STOP,

    /** As many tokens as were asked for. */
    LENGTH,

    /** The context is full. */
    CONTEXT,
}

/**
 * What shapes one answer: how tokens are chosen and what ends it.
 *
 * @property maxTokens maximum tokens to generate.
 * @property stop strings that end the answer and are left out of it.
 */
data class GenerateOptions(
    val maxTokens: Int = 512,
    val sampling: SamplingOptions = SamplingOptions(),
    val stop: List<String> = emptyList(),
) {
    init {
        if (maxTokens < 1) throw InputException("The most tokens to generate must be 1 or more, not $maxTokens.")
        if (stop.any { it.isEmpty() }) throw InputException("A stop string is empty; give at least one character.")
    }
}

/** What drafts did in one answer: the steps after its first token, and of all tokens that were drafted those accepted. */
data class Drafting(val steps: Int, val drafted: Int, val accepted: Int)

/** The clock of one answer. [drafting] is null where nothing drafts. */
data class Timings(
    val promptTokens: Int,
    val cachedTokens: Int,
    val generatedTokens: Int,
    val firstTokenMs: Double,
    val decodeSeconds: Double,
    val drafting: Drafting? = null,
) {
    /** Tokens per second after the first one; null where there was no second. */
    val tokensPerSecond: Double? get() = if (generatedTokens > 1) (generatedTokens - 1) / decodeSeconds else null
}

/**
 * What one token added to an answer.
 *
 * @property text empty while a character or a possible stop string is not complete.
 * @property token its id; -1 where an output ended because no token was allowed to follow.
 * @property finish set on the last piece alone, as is [timings].
 */
class Piece internal constructor(val text: String, val token: Int, val finish: FinishReason?, val timings: Timings?) {
    internal companion object {
        const val NONE = -1
    }
}
