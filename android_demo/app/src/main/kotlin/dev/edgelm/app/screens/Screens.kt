package dev.edgelm.app.screens

import android.app.Activity
import dev.edgelm.app.R
import dev.edgelm.bundle.Manifest

/** Something to do with a model. [fits] says with which. */
class Screen(val title: Int, val activity: Class<out Activity>, val fits: (Manifest) -> Boolean)

/** What a bundle's card offers, in this order. A new screen is a row here, and an activity in the manifest. */
val SCREENS = listOf(
    Screen(R.string.chat, ChatActivity::class.java) { it.kind == "decoder" && it.chatFormat != null },
    Screen(R.string.latency, LatencyActivity::class.java) { it.kind == "decoder" },
)
