package dev.edgelm.app.screens

import android.app.AlertDialog
import android.os.Bundle
import android.view.Menu
import android.view.View
import android.widget.EditText
import android.widget.ImageButton
import android.widget.ListView
import android.widget.PopupMenu
import android.widget.TextView
import dev.edgelm.app.R
import dev.edgelm.app.chat.ChatPresenter
import dev.edgelm.app.chat.ChatState
import dev.edgelm.app.chat.Stored
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.launch

/** A conversation: answers stream, and can be stopped. */
class ChatActivity : ScreenActivity() {
    private lateinit var chat: ChatPresenter
    private lateinit var adapter: TurnAdapter
    private lateinit var input: EditText
    private var draft = ""
    private var scope: CoroutineScope? = null

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.chat)
        chat = app.chat(bundle)
        openModel(state)
        adapter = TurnAdapter(layoutInflater)
        input = findViewById(R.id.input)
        findViewById<ListView>(R.id.turns).apply {
            adapter = this@ChatActivity.adapter
            setOnItemLongClickListener { _, _, position, _ ->
                copy(chat.state.value.turns[position].content)
                true
            }
        }
        findViewById<View>(R.id.send).setOnClickListener { if (chat.state.value.answering) chat.stop() else send() }
        findViewById<View>(R.id.other).apply {
            visibility = View.VISIBLE
            setOnClickListener { startActivity(intent(context, LatencyActivity::class.java, bundle.name)) }
        }
        findViewById<View>(R.id.more).apply {
            visibility = View.VISIBLE
            setOnClickListener { menu(this) }
        }
    }

    override fun show(scope: CoroutineScope) {
        this.scope = scope
        scope.each(chat.state, ::render)
    }

    override fun onStop() {
        if (!chat.state.value.answering) chat.keepDraft(input.text.toString())
        chat.keep()
        super.onStop()
    }

    private fun send() {
        if (!chat.state.value.ready || input.text.isBlank()) return
        val words = input.text.toString()
        input.text.clear()
        chat.send(words)
    }

    private fun render(state: ChatState) {
        bar(state.title, state.detail)
        loading(state.loading)
        problem(state.problem, chat::loadAnyway)
        adapter.show(state.turns)
        findViewById<View>(R.id.empty).visibility = if (state.turns.isEmpty()) View.VISIBLE else View.GONE
        findViewById<TextView>(R.id.note).show(state.note)
        findViewById<ImageButton>(R.id.send).apply {
            enable(state.answering || state.ready)
            setImageResource(if (state.answering) R.drawable.ic_stop else R.drawable.ic_send)
            contentDescription = getString(if (state.answering) R.string.stop else R.string.send)
        }
        if (state.draft != draft) { // else what is being typed would be overwritten
            draft = state.draft
            input.setText(draft)
            input.setSelection(draft.length)
        }
    }

    private fun menu(at: View) {
        PopupMenu(this, at).apply {
            menu.add(Menu.NONE, R.string.new_conversation, 0, R.string.new_conversation)
            menu.add(Menu.NONE, R.string.earlier, 1, R.string.earlier)
            menu.add(Menu.NONE, R.string.delete, 2, R.string.delete)
            setOnMenuItemClickListener { item ->
                when (item.itemId) {
                    R.string.new_conversation -> chat.begin()
                    R.string.earlier -> scope?.launch { choose(chat.earlier()) }
                    else -> chat.begin(forget = true)
                }
                true
            }
            show()
        }
    }

    private fun choose(earlier: List<Stored>) {
        val dialog = AlertDialog.Builder(this).setTitle(R.string.earlier).setNegativeButton(R.string.cancel, null)
        if (earlier.isEmpty()) {
            dialog.setMessage(R.string.no_earlier)
        } else {
            dialog.setItems(earlier.map { it.title }.toTypedArray()) { _, which -> chat.begin(earlier[which]) }
        }
        dialog.show()
    }
}
