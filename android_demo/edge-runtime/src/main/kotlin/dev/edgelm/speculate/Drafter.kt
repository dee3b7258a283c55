package dev.edgelm.speculate

/** A chain of tokens that may come next, of each a grade: an index into its drafter's priors. */
internal class Draft(most: Int) {
    val tokens = IntArray(most)
    val grades = IntArray(most)
    var size = 0

    fun add(token: Int, grade: Int) {
        tokens[size] = token
        grades[size++] = grade
    }
}

/**
 * Guesses how a text goes on, text after text. A guess is never random, so that what the sampler draws from the model's
 * own logits decides alone.
 */
internal interface Drafter {
    /** For each grade, the chance that such a token is right where the one before it was. */
    val priors: DoubleArray

    /** A text begins with [tokens]: the prompt, with the earlier turns of a chat. */
    fun begin(tokens: IntArray)

    /** The text goes on with the first [count] of [tokens], drafted or not. */
    fun accept(tokens: IntArray, count: Int)

    /**
     * Make [draft] what follows the text: up to [most] tokens, 1 or more. Below [minChance] of acceptance with its whole
     * path a token cannot pay.
     */
    fun propose(most: Int, minChance: Double, draft: Draft)
}
