package dev.edgelm.app.screens

import android.view.Gravity
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.FrameLayout
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.text.Message

/** The turns of a conversation as bubbles: the user's on the right. */
class TurnAdapter(private val inflater: LayoutInflater) : BaseAdapter() {
    private var turns = emptyList<Message>()

    fun show(given: List<Message>) {
        if (given == turns) return
        turns = given
        notifyDataSetChanged()
    }

    override fun getCount() = turns.size

    override fun getItem(position: Int) = turns[position]

    override fun getItemId(position: Int) = position.toLong()

    override fun getView(position: Int, old: View?, parent: ViewGroup): View {
        val view = old ?: inflater.inflate(R.layout.turn, parent, false)
        val turn = turns[position]
        val user = turn.role == "user"
        view.findViewById<TextView>(R.id.words).apply {
            text = turn.content.ifEmpty { WAITING }
            setBackgroundResource(if (user) R.drawable.bubble_user else R.drawable.bubble_model)
            setTextColor(context.getColor(if (user) R.color.on_bubble else R.color.text))
            maxWidth = (parent.width * WIDTH).toInt()
            layoutParams = (layoutParams as FrameLayout.LayoutParams).apply { gravity = if (user) Gravity.END else Gravity.START }
        }
        return view
    }

    private companion object {
        const val WAITING = "…"
        const val WIDTH = 0.84f // of the list, so that one sees whose words they are
    }
}
