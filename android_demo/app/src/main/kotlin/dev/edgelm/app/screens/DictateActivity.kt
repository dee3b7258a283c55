package dev.edgelm.app.screens

import android.Manifest
import android.content.pm.PackageManager
import android.os.Bundle
import android.view.View
import android.view.WindowManager
import android.widget.Button
import android.widget.ListView
import android.widget.ProgressBar
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.dictate.DictatePresenter
import dev.edgelm.app.dictate.DictateState
import dev.edgelm.app.dictate.Stage
import kotlinx.coroutines.CoroutineScope

/** Speech becomes text: recorded first, then heard piece by piece. */
class DictateActivity : ScreenActivity() {
    private lateinit var dictate: DictatePresenter
    private lateinit var adapter: LineAdapter

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.dictate)
        dictate = app.dictate(bundle)
        openModel(state)
        adapter = LineAdapter(layoutInflater)
        findViewById<ListView>(R.id.lines).adapter = adapter
        findViewById<View>(R.id.record).setOnClickListener { if (dictate.state.value.stage == Stage.NOTHING) record() else dictate.stop() }
        findViewById<View>(R.id.transcribe).setOnClickListener { dictate.transcribe() }
        findViewById<View>(R.id.clear).setOnClickListener { dictate.clear() }
        textActions { dictate.state.value.dictation.text }
    }

    override fun show(scope: CoroutineScope) = scope.each(dictate.state, ::render)

    override fun onStop() {
        if (!isChangingConfigurations) dictate.hide() // a turned phone goes on
        super.onStop()
    }

    private fun record() {
        if (checkSelfPermission(Manifest.permission.RECORD_AUDIO) == PackageManager.PERMISSION_GRANTED) {
            dictate.record()
        } else {
            requestPermissions(arrayOf(Manifest.permission.RECORD_AUDIO), RECORD)
        }
    }

    override fun onRequestPermissionsResult(request: Int, permissions: Array<String>, results: IntArray) {
        if (request != RECORD || results.isEmpty()) return // empty: the question was interrupted
        if (results[0] == PackageManager.PERMISSION_GRANTED) dictate.record() else dictate.refused()
    }

    private fun render(state: DictateState) {
        val recording = state.stage == Stage.RECORDING
        bar(state.title, state.detail)
        loading(state.loading || state.stage == Stage.TRANSCRIBING)
        problem(state.problem, dictate::loadAnyway)
        val choices = if (state.languages.isEmpty()) emptyList() else listOf(getString(R.string.detect)) + state.languages
        val chosen = 1 + state.languages.indexOfFirst { it.code == state.dictation.language }
        languages(findViewById(R.id.language), choices, chosen) { dictate.chooseLanguage(state.languages.getOrNull(it - 1)?.code) }
        adapter.show(state.dictation.lines)
        findViewById<View>(R.id.empty).visibility = if (state.dictation.lines.isEmpty() && !recording) View.VISIBLE else View.GONE
        findViewById<View>(R.id.recording).visibility = if (recording) View.VISIBLE else View.GONE
        findViewById<TextView>(R.id.elapsed).text = clock(state.seconds)
        findViewById<ProgressBar>(R.id.level).progress = (100 * state.level).toInt()
        findViewById<TextView>(R.id.note).show(state.note)
        findViewById<Button>(R.id.record).apply {
            setText(if (state.stage == Stage.NOTHING) R.string.record else R.string.stop)
            enable(state.ready || state.stage != Stage.NOTHING)
        }
        findViewById<View>(R.id.transcribe).enable(state.canTranscribe)
        findViewById<View>(R.id.clear).enable(state.stage == Stage.NOTHING && state.seconds > 0)
        enableTextActions(state.dictation.text.isNotEmpty())
        val awake = WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON
        if (recording) window.addFlags(awake) else window.clearFlags(awake)
    }

    private companion object {
        const val RECORD = 1
    }
}
