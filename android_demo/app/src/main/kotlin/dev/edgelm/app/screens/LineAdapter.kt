package dev.edgelm.app.screens

import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.model.Line

/** What was said, with the time at which it began. */
class LineAdapter(inflater: LayoutInflater) : RowAdapter<Line>(inflater, R.layout.line) {
    override fun fill(view: View, row: Line, parent: ViewGroup) {
        view.findViewById<TextView>(R.id.time).text = clock(row.start)
        view.findViewById<TextView>(R.id.words).text = row.text.trim()
    }
}

/** Minutes and seconds. */
internal fun clock(seconds: Double): String = with(seconds.toInt()) { "%d:%02d".format(this / 60, this % 60) }
