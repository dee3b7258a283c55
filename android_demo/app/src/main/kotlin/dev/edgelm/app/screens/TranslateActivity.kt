package dev.edgelm.app.screens

import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.Spinner
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.translate.TranslatePresenter
import dev.edgelm.app.translate.TranslateState
import kotlinx.coroutines.CoroutineScope

/** A text becomes another: the output streams, and can be stopped, copied and shared. */
class TranslateActivity : ScreenActivity() {
    private lateinit var translate: TranslatePresenter
    private lateinit var source: EditText
    private var shown = ""

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.translate)
        translate = app.translate(bundle)
        openModel(state)
        source = findViewById(R.id.source)
        findViewById<View>(R.id.start).setOnClickListener { if (translate.state.value.working) translate.stop() else start() }
        textActions { translate.state.value.translation.output }
    }

    override fun show(scope: CoroutineScope) = scope.each(translate.state, ::render)

    override fun onStop() {
        keepSource()
        translate.keep()
        super.onStop()
    }

    private fun start() {
        keepSource()
        translate.start()
    }

    private fun keepSource() {
        shown = source.text.toString()
        translate.keepSource(shown)
    }

    private fun render(state: TranslateState) {
        val (text, output, from, to) = state.translation
        bar(state.title, state.detail)
        loading(state.loading || state.working)
        problem(state.problem, translate::loadAnyway)
        val sources = findViewById<Spinner>(R.id.from)
        val targets = findViewById<Spinner>(R.id.to)
        languages(sources, state.sources, state.sources.indexOfFirst { it.code == from }) { translate.chooseSource(state.sources[it].code) }
        languages(targets, state.targets, state.targets.indexOfFirst { it.code == to }) { translate.chooseTarget(state.targets[it].code) }
        val choices = listOf(sources, targets).count { it.visibility == View.VISIBLE }
        findViewById<View>(R.id.languages).visibility = if (choices == 0) View.GONE else View.VISIBLE
        findViewById<View>(R.id.arrow).visibility = if (choices == 2) View.VISIBLE else View.GONE
        if (text != shown) { // else what is being typed would be overwritten
            shown = text
            source.setText(text)
            source.setSelection(text.length)
        }
        findViewById<TextView>(R.id.output).text = output
        findViewById<TextView>(R.id.note).show(state.note)
        findViewById<Button>(R.id.start).apply {
            setText(if (state.working) R.string.stop else R.string.start)
            enable(state.working || state.ready)
        }
        enableTextActions(output.isNotEmpty())
    }
}
