package dev.edgelm.app

import java.io.File

/** What a screen about one bundle shows and does; outlives the screen. */
interface BundlePresenter {
    val bundle: File

    /** Another bundle's screen takes its place. */
    fun close()
}
