package dev.edgelm.engine

/** What one input of an encoder-decoder is worked on in: a cache, and memory for what the encoder makes of it. */
internal class Slot(val cache: KvCache, private val room: Encoder.Room) {
    /** Begin with a text's tokens. */
    fun read(engine: Engine, ids: IntArray) = cache.reset(engine.encode { it.encodeText(ids, room) })

    fun close() {
        cache.close()
        room.close()
    }
}

/** Slots of inputs that are done, for the next ones: making a cache takes milliseconds, which a small model's text feels. */
internal class Slots(private val engine: Engine) {
    private val spare = ArrayList<Slot>()
    private var closed = false

    /** Work in a slot for up to [rows] rows. */
    inline fun <T> use(rows: Int, action: (Slot) -> T): T {
        val slot = take(rows)
        try {
            return action(slot)
        } finally {
            giveBack(slot)
        }
    }

    fun take(rows: Int): Slot {
        while (true) {
            val slot = synchronized(this) { if (spare.isEmpty()) null else spare.removeAt(spare.size - 1) } ?: break
            if (slot.cache.capacity >= rows) return slot
            slot.close()
        }
        return Slot(engine.makeCache(rows), Encoder.Room())
    }

    fun giveBack(slot: Slot) {
        val kept = synchronized(this) { !closed && spare.add(slot) }
        if (!kept) slot.close()
    }

    /** Hand the memory of spare slots back. */
    fun trim() {
        val all = synchronized(this) { ArrayList(spare).also { spare.clear() } }
        all.forEach { it.close() }
    }

    /** As [trim]; slots that are in use follow when they are given back. */
    fun close() {
        synchronized(this) { closed = true }
        trim()
    }
}
