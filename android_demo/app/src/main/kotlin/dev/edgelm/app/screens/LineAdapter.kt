package dev.edgelm.app.screens

import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.model.Line

/** What was said, with the time at which it began. */
class LineAdapter(private val inflater: LayoutInflater) : BaseAdapter() {
    private var lines = emptyList<Line>()

    fun show(given: List<Line>) {
        if (given == lines) return
        lines = given
        notifyDataSetChanged()
    }

    override fun getCount() = lines.size

    override fun getItem(position: Int) = lines[position]

    override fun getItemId(position: Int) = position.toLong()

    override fun getView(position: Int, old: View?, parent: ViewGroup): View {
        val view = old ?: inflater.inflate(R.layout.line, parent, false)
        view.findViewById<TextView>(R.id.time).text = clock(lines[position].start)
        view.findViewById<TextView>(R.id.words).text = lines[position].text.trim()
        return view
    }
}

/** Minutes and seconds. */
internal fun clock(seconds: Double): String = with(seconds.toInt()) { "%d:%02d".format(this / 60, this % 60) }
