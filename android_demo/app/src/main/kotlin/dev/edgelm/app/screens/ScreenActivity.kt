package dev.edgelm.app.screens

import android.app.Activity
import android.content.ClipData
import android.content.ClipboardManager
import android.content.Context
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.AdapterView
import android.widget.ArrayAdapter
import android.widget.Button
import android.widget.ImageButton
import android.widget.Spinner
import android.widget.TextView
import android.widget.Toast
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

    /** Offer to copy and to share a text, in the bar. */
    protected fun textActions(text: () -> String) {
        findViewById<ImageButton>(R.id.other).apply {
            setImageResource(R.drawable.ic_copy)
            contentDescription = getString(R.string.copy)
            visibility = View.VISIBLE
            setOnClickListener { copy(text()) }
        }
        findViewById<ImageButton>(R.id.more).apply {
            setImageResource(R.drawable.ic_share)
            contentDescription = getString(R.string.share)
            visibility = View.VISIBLE
            setOnClickListener { share(Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, text())) }
        }
    }

    /** There is a text to copy and to share. */
    protected fun enableTextActions(on: Boolean) {
        findViewById<View>(R.id.other).enable(on)
        findViewById<View>(R.id.more).enable(on)
    }

    protected fun copy(words: String) {
        getSystemService(ClipboardManager::class.java).setPrimaryClip(ClipData.newPlainText("", words))
        Toast.makeText(this, R.string.copied_text, Toast.LENGTH_SHORT).show()
    }

    protected fun share(send: Intent) = startActivity(Intent.createChooser(send, getString(R.string.share)))

    /** A list of languages; [choose] is told a position that the user took. */
    protected fun languages(spinner: Spinner, all: List<Any>, selected: Int, choose: (Int) -> Unit) {
        if (spinner.tag != all) {
            spinner.tag = all
            spinner.adapter = ArrayAdapter(this, R.layout.language, all).apply {
                setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item)
            }
        }
        spinner.visibility = if (all.size < 2) View.GONE else View.VISIBLE
        spinner.onItemSelectedListener = object : AdapterView.OnItemSelectedListener {
            override fun onItemSelected(parent: AdapterView<*>, view: View?, position: Int, id: Long) {
                if (position != selected) choose(position)
            }

            override fun onNothingSelected(parent: AdapterView<*>) = Unit
        }
        if (spinner.selectedItemPosition != selected) spinner.setSelection(selected)
    }

    companion object {
        private const val BUNDLE = "bundle"

        /** Starts a screen for the bundle in a folder of this name. */
        fun intent(context: Context, screen: Class<out Activity>, bundle: String): Intent =
            Intent(context, screen).putExtra(BUNDLE, bundle)
    }
}

internal fun View.enable(on: Boolean) {
    isEnabled = on
    alpha = if (on) 1f else 0.4f
}

/** Show a text, and take no room without one. */
internal fun TextView.show(words: String?) {
    text = words
    visibility = if (words.isNullOrEmpty()) View.GONE else View.VISIBLE
}
