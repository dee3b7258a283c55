package dev.edgelm.decode

import dev.edgelm.engine.BLOCKED
import dev.edgelm.engine.Engine
import dev.edgelm.engine.KvCache
import dev.edgelm.engine.Tree
import java.nio.FloatBuffer

/**
 * The branches that grow from what a cache holds, up to [width] at a time; all of them have the same length.
 *
 * The first rows of the cache belong to all branches. Each step adds one token to each branch; a branch may be continued
 * in several ways, or in none, which is its end. Rows of dead branches stay until there are enough to move the others
 * for.
 */
internal class Branches(private val engine: Engine, private val cache: KvCache, width: Int) {
    private var bias = Array(width) { FloatArray(cache.capacity) } // what the newest row of each branch attends to
    private var next = Array(width) { FloatArray(cache.capacity) }
    private var position = cache.length // of the next tokens
    private var live = cache.length // rows that some branch attended to when they were last counted

    /**
     * Continue the branches [parents] with [tokens], which makes as many branches in this order; logits of all of them,
     * null where the cache has no room, even without the rows of dead branches.
     */
    fun step(parents: IntArray, tokens: IntArray): FloatBuffer? {
        val size = tokens.size
        for (row in 0 until size) System.arraycopy(bias[parents[row]], 0, next[row], 0, cache.length)
        if (cache.room < size || cache.length - live > SPARE_ROWS) drop(size)
        if (cache.room < size) return null
        for (row in 0 until size) {
            next[row].fill(BLOCKED, cache.length, cache.length + size)
            next[row][cache.length + row] = 0f
        }
        bias = next.also { next = bias }
        val positions = IntArray(size)
        positions.fill(position++)
        return engine.branch(cache, tokens, Tree(positions, bias))
    }

    /** Drop the rows that none of the next [size] branches attends to, where that is worth it. */
    private fun drop(size: Int) {
        val rows = (0 until cache.length).filter { column -> (0 until size).any { next[it][column] == 0f } }.toIntArray()
        live = rows.size
        if (cache.room >= size && cache.length - live <= SPARE_ROWS) return
        cache.compact(rows)
        for (row in 0 until size) for (i in rows.indices) next[row][i] = next[row][rows[i]]
    }

    private companion object {
        const val SPARE_ROWS = 32 // dead rows that are not worth moving the others for, as Python has it
    }
}
