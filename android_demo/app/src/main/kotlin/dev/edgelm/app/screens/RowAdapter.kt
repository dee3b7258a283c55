package dev.edgelm.app.screens

import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter

/** The rows of a list, each in a view made of [layout]. */
abstract class RowAdapter<T>(private val inflater: LayoutInflater, private val layout: Int) : BaseAdapter() {
    private var rows = emptyList<T>()

    fun show(given: List<T>) {
        if (given == rows) return
        rows = given
        notifyDataSetChanged()
    }

    override fun getCount() = rows.size

    override fun getItem(position: Int) = rows[position]

    override fun getItemId(position: Int) = position.toLong()

    override fun getView(position: Int, old: View?, parent: ViewGroup): View =
        (old ?: inflater.inflate(layout, parent, false)).also { fill(it, rows[position], parent) }

    /** Show a row in its view, which may have shown another. */
    protected abstract fun fill(view: View, row: T, parent: ViewGroup)
}
