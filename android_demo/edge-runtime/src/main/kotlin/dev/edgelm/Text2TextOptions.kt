package dev.edgelm

import dev.edgelm.bundle.Generation
import dev.edgelm.decode.BeamOptions
import dev.edgelm.decode.SamplingOptions

/** When a beam search has as many whole texts as beams, it ends... */
enum class EarlyStopping {
    /** ...at once. */
    TRUE,

    /** ...when no unfinished text, at its present length, is ahead of the worst of them. */
    FALSE,

    /** ...when no unfinished text can get ahead of the worst of them. */
    NEVER,
}

/**
 * What shapes one output of an encoder-decoder. Null stands for what the bundle sets, from the checkpoint's own settings.
 *
 * @property maxTokens maximum tokens to generate; where nothing is set 512.
 * @property minTokens minimum tokens before the output may end; 0: no such rule.
 * @property stop strings that end the output and are left out of it.
 * @property beams texts pursued at a time; 1: greedy, or drawn with a temperature.
 * @property groups equal groups of beams, kept different by [diversity]; 1: no groups.
 * @property diversity subtracted from the score of a token for each beam of an earlier group that has it in this step.
 * @property lengthPenalty a text's log probability is divided by its length to this power; above 0 favours longer texts.
 * @property nBest how many texts [EdgeText2Text.candidates] gives, up to [beams].
 * @property noRepeatNgram no run of so many tokens occurs twice; 0: no such rule.
 * @property sourceLanguage code of a multilingual model's language, such as `de`, `de_DE` or `deu_Latn`.
 */
data class Text2TextOptions(
    val maxTokens: Int? = null,
    val minTokens: Int? = null,
    val sampling: SamplingOptions = SamplingOptions(),
    val stop: List<String> = emptyList(),
    val beams: Int? = null,
    val groups: Int = 1,
    val diversity: Double = 0.0,
    val lengthPenalty: Double? = null,
    val earlyStopping: EarlyStopping? = null,
    val nBest: Int = 1,
    val noRepeatNgram: Int? = null,
    val sourceLanguage: String? = null,
    val targetLanguage: String? = null,
) {
    init {
        GenerateOptions(maxTokens ?: 1, stop = stop) // says what is wrong with these
        check("number of beams", beams ?: 1, "1 or more", (beams ?: 1) >= 1)
        check("number of beam groups", groups, "1 or more", groups >= 1)
        check("diversity", diversity, "a number of 0 or more", diversity >= 0 && diversity.isFinite())
        check("number of best texts", nBest, "1 or more", nBest >= 1)
        check("minimum of tokens", minTokens ?: 0, "0 or more", (minTokens ?: 0) >= 0)
        check("n-gram size", noRepeatNgram ?: 0, "0 or more", (noRepeatNgram ?: 0) >= 0)
        check("length penalty", lengthPenalty ?: 1.0, "a number", (lengthPenalty ?: 1.0).isFinite())
        if (maxTokens != null && (minTokens ?: 0) > maxTokens) {
            throw InputException("At least $minTokens and at most $maxTokens tokens cannot both hold.")
        }
        if (beams != null) beamOptions(Generation(), 1)
        if (sampling.temperature > 0 && maxOf(beams ?: 1, groups, nBest) > 1) {
            throw InputException(
                "Tokens are drawn for one text at a time, so that there are no beams, groups or n best texts.",
            )
        }
    }

    private fun check(name: String, value: Any, wanted: String, valid: Boolean) {
        if (!valid) throw InputException("The $name must be $wanted, not $value.")
    }

    /** The bundle's settings of a search, with what is set here instead. */
    internal fun over(defaults: Generation) = defaults.copy(
        numBeams = beams ?: if (sampling.temperature > 0) 1 else defaults.numBeams,
        lengthPenalty = lengthPenalty ?: defaults.lengthPenalty,
    )

    /** How beams are searched. */
    internal fun beamOptions(defaults: Generation, maxTokens: Int): BeamOptions {
        val settings = over(defaults)
        if (settings.numBeams == 1 && (lengthPenalty != null || earlyStopping != null)) {
            throw InputException(
                "A length penalty and early stopping are for searches of several beams, and there is one; ask for 2 or " +
                    "more beams, or leave them out.",
            )
        }
        val stopping = earlyStopping ?: EarlyStopping.valueOf(defaults.earlyStopping.content.uppercase())
        return BeamOptions(
            settings.numBeams, maxTokens, groups, diversity, settings.lengthPenalty, stopping, nBest,
            sampling.circles,
        )
    }
}

/**
 * One of the n best outputs.
 *
 * @property score ranks them: the log probability over the length to the power of the length penalty. NaN, as is
 *   [logProbability], where there was one beam.
 */
class Candidate internal constructor(
    val text: String,
    val tokens: List<Int>,
    val score: Double,
    val logProbability: Double,
    val finish: FinishReason,
)
