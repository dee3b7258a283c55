package dev.edgelm.app.dictate

import kotlinx.coroutines.flow.Flow

/** Where sound comes from. */
interface Microphone {
    /**
     * Mono 16-bit samples, [rate] a second, from now on until the collector ends: about ten chunks a second. The flow
     * throws an EdgeException where there is no sound to be had, and may block its collector's thread.
     */
    fun record(rate: Int): Flow<ShortArray>
}
