package dev.edgelm.app.screens

import android.view.Gravity
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.FrameLayout
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.text.Message

/** The turns of a conversation as bubbles: the user's on the right. */
class TurnAdapter(inflater: LayoutInflater) : RowAdapter<Message>(inflater, R.layout.turn) {
    override fun fill(view: View, row: Message, parent: ViewGroup) {
        val user = row.role == "user"
        view.findViewById<TextView>(R.id.words).apply {
            text = row.content.ifEmpty { WAITING }
            setBackgroundResource(if (user) R.drawable.bubble_user else R.drawable.bubble_model)
            setTextColor(context.getColor(if (user) R.color.on_bubble else R.color.text))
            maxWidth = (parent.width * WIDTH).toInt()
            layoutParams = (layoutParams as FrameLayout.LayoutParams).apply { gravity = if (user) Gravity.END else Gravity.START }
        }
    }

    private companion object {
        const val WAITING = "…"
        const val WIDTH = 0.84f // of the list, so that one sees whose words they are
    }
}
