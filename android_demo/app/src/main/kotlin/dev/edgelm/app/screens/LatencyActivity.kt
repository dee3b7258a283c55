package dev.edgelm.app.screens

import android.content.Intent
import android.os.Bundle
import android.view.View
import android.view.WindowManager
import android.widget.Button
import android.widget.LinearLayout
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.latency.Chart
import dev.edgelm.app.latency.LatencyPresenter
import dev.edgelm.app.latency.LatencyState
import dev.edgelm.profile.Profile
import kotlinx.coroutines.CoroutineScope

/** What a model takes on this phone, as figures and charts. */
class LatencyActivity : ScreenActivity() {
    private lateinit var latency: LatencyPresenter
    private var drawn: Profile? = null

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.latency)
        latency = app.latency(bundle)
        if (latency.state.value.measurable) openModel(state)
        findViewById<View>(R.id.measure).setOnClickListener { if (latency.state.value.measuring) latency.stop() else latency.start() }
        findViewById<View>(R.id.share).setOnClickListener { share() }
    }

    override fun show(scope: CoroutineScope) = scope.each(latency.state, ::render)

    private fun render(state: LatencyState) {
        bar(state.title, getString(R.string.latency))
        loading(state.loading || state.measuring)
        problem(state.problem, latency::loadAnyway)
        findViewById<TextView>(R.id.note).show(state.note)
        findViewById<Button>(R.id.measure).apply {
            setText(if (state.measuring) R.string.stop else R.string.measure)
            enable(state.measuring || state.ready)
        }
        findViewById<Button>(R.id.share).enable(state.shareable)
        // A phone that turns its screen off slows down.
        val awake = WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON
        if (state.measuring) window.addFlags(awake) else window.clearFlags(awake)
        findViewById<TextView>(R.id.empty).setText(if (state.measurable) R.string.latency_empty else R.string.latency_decoders)
        findViewById<View>(R.id.empty).visibility = if (state.profile == null) View.VISIBLE else View.GONE
        if (state.profile !== drawn) draw(state.profile)
    }

    private fun draw(profile: Profile?) {
        drawn = profile
        val figures = findViewById<LinearLayout>(R.id.figures)
        val charts = findViewById<LinearLayout>(R.id.charts)
        figures.removeAllViews()
        charts.removeAllViews()
        if (profile == null) return
        for ((name, value) in figures(profile)) {
            val figure = layoutInflater.inflate(R.layout.figure, figures, false)
            figure.findViewById<TextView>(R.id.figure_value).text = value
            figure.findViewById<TextView>(R.id.figure_name).setText(name)
            figures.addView(figure)
        }
        for (chart in Chart.of(profile)) {
            val view = ChartView(this, chart)
            view.contentDescription = getString(R.string.chart_description, chart.title)
            val room = LinearLayout.LayoutParams(LinearLayout.LayoutParams.MATCH_PARENT, LinearLayout.LayoutParams.WRAP_CONTENT)
            room.bottomMargin = resources.getDimensionPixelSize(R.dimen.gap)
            charts.addView(view, room)
        }
    }

    /** Three figures for who reads no chart: of the shortest prompt and context. */
    private fun figures(profile: Profile): List<Pair<Int, String>> = listOfNotNull(
        profile.ttft.firstOrNull()?.let { R.string.figure_first to "%.0f ms".format(it.time.p50Ms) },
        profile.decode.firstOrNull()?.let { R.string.figure_rate to "%.1f".format(it.tokensPerS) },
        profile.memory?.steadyPrivateBytes?.let { R.string.figure_memory to "${it / 1_000_000} MB" },
    )

    private fun share() {
        val send = Intent(Intent.ACTION_SEND)
            .setType(SharedProfiles.TYPE)
            .putExtra(Intent.EXTRA_STREAM, SharedProfiles.uri(latency.file))
            .addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION)
        share(send)
    }
}
