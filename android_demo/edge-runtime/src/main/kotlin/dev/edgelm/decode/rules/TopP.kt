package dev.edgelm.decode.rules

private const val NUCLEUS = 256 // the first guess of how many of the largest weights sum up to top-p

/** Leaves the smallest set of largest weights that holds a share of their sum, and those that equal the last of them. */
internal fun topP(settings: RuleSettings): Threshold? {
    val share = settings.sampling.topP
    if (share >= 1) return null
    return Threshold { left ->
        var sum = 0.0
        for (i in 0 until left.size) sum += left.values[i]
        smallest(left, share * sum)
    }
}

/** The smallest of the largest weights that sum up to [wanted]. */
private fun smallest(left: Left, wanted: Double): Float {
    var count = minOf(NUCLEUS, left.size)
    while (true) { // sorts the largest only; a vocabulary's nucleus is rarely more than that
        val sorted = left.sorted(count)
        var reached = 0.0
        for (i in count - 1 downTo 0) {
            reached += sorted[i]
            if (reached >= wanted) return sorted[i]
        }
        if (count == left.size) return sorted[0]
        count = minOf(8 * count, left.size)
    }
}
