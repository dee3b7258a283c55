package dev.edgelm.app.screens

import android.app.Activity
import android.content.Context
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.ImageButton
import android.widget.TextView
import dev.edgelm.app.EdgeApp
import dev.edgelm.app.R
import dev.edgelm.app.model.ModelState
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.launch

/** A screen that shows a presenter's states while it is visible. */
abstract class ScreenActivity : Activity() {
    private var visible: CoroutineScope? = null

    protected val app: EdgeApp get() = application as EdgeApp

    /** The bundle that this screen is about. */
    protected val bundle: File by lazy { app.shelf.folder(intent.getStringExtra(BUNDLE)!!) }

    /** Load the model: not again where the phone was only turned, but where the process had died. */
    protected fun openModel(restored: Bundle?) {
        if (restored == null || app.holder.state.value == ModelState.Nothing) app.holder.open(bundle)
    }

    /** Called when the screen becomes visible; what it launches in [scope] ends when it is hidden. */
    protected abstract fun show(scope: CoroutineScope)

    override fun onStart() {
        super.onStart()
        show(MainScope().also { visible = it })
    }

    override fun onStop() {
        visible?.cancel()
        super.onStop()
    }

    protected fun <T> CoroutineScope.each(states: Flow<T>, action: (T) -> Unit) {
        launch { states.collect { action(it) } }
    }

    protected fun bar(title: String, detail: String) {
        findViewById<TextView>(R.id.title).text = title
        findViewById<TextView>(R.id.detail).show(detail)
        findViewById<ImageButton>(R.id.back).setOnClickListener { finish() }
    }

    /** Say why the model is not there, and offer to load it. */
    protected fun problem(sentence: String?, load: () -> Unit) {
        findViewById<View>(R.id.problem).visibility = if (sentence == null) View.GONE else View.VISIBLE
        findViewById<TextView>(R.id.problem_text).text = sentence
        findViewById<Button>(R.id.problem_action).setOnClickListener { load() }
    }

    protected fun loading(shown: Boolean) {
        findViewById<View>(R.id.loading).visibility = if (shown) View.VISIBLE else View.INVISIBLE
    }

    companion object {
        private const val BUNDLE = "bundle"

        /** Starts a screen for the bundle in a folder of this name. */
        fun intent(context: Context, screen: Class<out Activity>, bundle: String): Intent =
            Intent(context, screen).putExtra(BUNDLE, bundle)
    }
}

/** Show a text, and take no room without one. */
internal fun TextView.show(words: String?) {
    text = words
    visibility = if (words.isNullOrEmpty()) View.GONE else View.VISIBLE
}
