package dev.edgelm.speculate

/** How often drafted tokens of each grade were right where the one before them was, over answers and in this one. */
internal class Acceptance(priors: DoubleArray) {
    private val right = DoubleArray(priors.size) { LASTING * priors[it] }
    private val seen = DoubleArray(priors.size) { LASTING }
    private val rightHere = DoubleArray(priors.size)
    private val seenHere = DoubleArray(priors.size)

    /** Of a grade, in this answer. */
    val chances = DoubleArray(priors.size)

    init {
        begin()
    }

    /** An answer begins: what earlier ones taught is where it starts from. */
    fun begin() {
        for (grade in chances.indices) {
            chances[grade] = right[grade] / seen[grade]
            rightHere[grade] = STRENGTH * chances[grade]
            seenHere[grade] = STRENGTH
        }
    }

    /** A token of this grade followed the text, or did not. */
    fun observe(grade: Int, accepted: Boolean) {
        val one = if (accepted) 1.0 else 0.0
        right[grade] = right[grade] * ACROSS + one
        seen[grade] = seen[grade] * ACROSS + 1
        rightHere[grade] = rightHere[grade] * FADING + one
        seenHere[grade] = seenHere[grade] * FADING + 1
        chances[grade] = rightHere[grade] / seenHere[grade]
    }

    private companion object {
        // What is believed of a grade at the start of an answer counts as so many observations of it; older ones fade.
        const val STRENGTH = 12.0
        const val LASTING = 24.0 // the same of what is believed before the first answer
        const val FADING = 0.96
        const val ACROSS = 0.998 // the same over answers
    }
}
