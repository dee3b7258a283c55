package dev.edgelm.app

import android.app.Activity
import android.app.Instrumentation
import android.os.Bundle
import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.app.latency.measure
import dev.edgelm.app.latency.profileFile
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext

/**
 * Measures a model when a computer asks: `adb shell am instrument -w -r -e bundle NAME.edge
 * dev.edgelm.app/.ProfileInstrumentation`, which `edge push` calls. A status `measured` tells each figure; the result has
 * the `profile`'s path in the app's folder, or the `problem` in a sentence.
 */
open class ProfileInstrumentation : Instrumentation() {
    private var name: String? = null

    override fun onCreate(arguments: Bundle?) {
        super.onCreate(arguments)
        name = arguments?.getString("bundle")
        start()
    }

    /** On a thread of its own. */
    override fun onStart() {
        val app = targetContext.applicationContext as EdgeApp
        try {
            val bundle = app.shelf.folder(name ?: throw InputException("Name the bundle: -e bundle NAME.edge."))
            val file = profileFile(app.profiles, bundle)
            runBlocking {
                withContext(Dispatchers.Main) { app.holder.open(bundle, anyway = true) }
                measure(bundle, app.holder, file) { sendStatus(0, said("measured", it)) }
            }
            finish(Activity.RESULT_OK, said("profile", file.toRelativeString(app.dataDir)))
        } catch (e: EdgeException) {
            finish(Activity.RESULT_CANCELED, said("problem", e.message!!))
        }
    }

    private fun said(key: String, words: String) = Bundle().apply { putString(key, words) }
}
