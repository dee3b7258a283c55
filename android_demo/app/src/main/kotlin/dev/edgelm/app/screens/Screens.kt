package dev.edgelm.app.screens

import android.app.Activity
import dev.edgelm.app.R
import dev.edgelm.bundle.Manifest

/** Something to do with a model. [fits] says with which. */
class Screen(val title: Int, val activity: Class<out Activity>, val fits: (Manifest) -> Boolean)

private val TRANSLATORS = setOf("marian", "m2m_100", "mbart") // other families shorten, answer and rewrite as well

/** What a bundle's card offers, in this order. A new screen is a row here, and an activity in the manifest. */
val SCREENS = listOf(
    Screen(R.string.chat, ChatActivity::class.java) { it.kind == "decoder" && it.chatFormat != null },
    Screen(R.string.translate, TranslateActivity::class.java) { it.text != null && it.family in TRANSLATORS },
    Screen(R.string.rewrite, TranslateActivity::class.java) { it.text != null && it.family !in TRANSLATORS },
    Screen(R.string.dictate, DictateActivity::class.java) { it.speech != null },
    Screen(R.string.latency, LatencyActivity::class.java) { true },
)
