package dev.edgelm.app.screens

import android.app.AlertDialog
import android.content.ActivityNotFoundException
import android.content.Intent
import android.os.Bundle
import android.view.ContextThemeWrapper
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.TextView
import android.widget.Toast
import dev.edgelm.app.R
import dev.edgelm.app.bundles.BundleSource
import dev.edgelm.app.bundles.BundlesState
import dev.edgelm.app.bundles.Copying
import dev.edgelm.app.bundles.Entry
import kotlinx.coroutines.CoroutineScope

/** The bundles on this phone, and where more come from. */
class BundlesActivity : ScreenActivity() {
    private var shown: BundlesState? = null

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.bundles)
        findViewById<View>(R.id.add).setOnClickListener { pick() }
        findViewById<View>(R.id.copying_cancel).setOnClickListener { app.bundles.cancel() }
        findViewById<View>(R.id.message).setOnClickListener { app.bundles.dismiss() }
    }

    override fun show(scope: CoroutineScope) {
        app.bundles.refresh()
        scope.each(app.bundles.state, ::render)
    }

    private fun render(state: BundlesState) {
        val before = shown
        shown = state
        copying(state.copying)
        findViewById<TextView>(R.id.message).show(state.message)
        // Progress comes many times a second, and must not make cards anew under a finger.
        if (before?.copy(copying = null, message = null) == state.copy(copying = null, message = null)) return
        val cards = findViewById<LinearLayout>(R.id.cards)
        cards.removeAllViews()
        for (entry in state.entries) cards.addView(card(cards, entry, entry.folder.name in state.crashed))
        for (source in state.offered) cards.addView(offer(cards, source))
    }

    private fun copying(copying: Copying?) {
        findViewById<View>(R.id.copying).visibility = if (copying == null) View.GONE else View.VISIBLE
        findViewById<View>(R.id.add).isEnabled = copying == null
        if (copying == null) return
        findViewById<TextView>(R.id.copying_name).text = getString(R.string.copying, copying.name)
        findViewById<ProgressBar>(R.id.copying_bar).progress = (1000 * copying.done / copying.total).toInt()
        findViewById<TextView>(R.id.copying_detail).text =
            getString(R.string.copied, copying.done / 1_000_000, copying.total / 1_000_000)
    }

    private fun card(parent: ViewGroup, entry: Entry, crashed: Boolean): View {
        val card = layoutInflater.inflate(R.layout.card, parent, false)
        val screens = entry.manifest?.let { manifest -> SCREENS.filter { it.fits(manifest) } }.orEmpty()
        card.findViewById<TextView>(R.id.name).text = entry.title
        card.findViewById<TextView>(R.id.card_detail).text = entry.detail
        card.findViewById<TextView>(R.id.card_warning).show(if (crashed) getString(R.string.crashed) else null)
        card.findViewById<View>(R.id.card_more).setOnClickListener { remove(entry) }
        val actions = card.findViewById<LinearLayout>(R.id.actions)
        for ((i, screen) in screens.withIndex()) {
            actions.addView(action(getString(screen.title), if (i == 0) R.style.Action else R.style.Action_Quiet) {
                startActivity(intent(this, screen.activity, entry.folder.name))
            })
        }
        return card
    }

    private fun offer(parent: ViewGroup, source: BundleSource): View {
        val card = layoutInflater.inflate(R.layout.card, parent, false)
        card.findViewById<TextView>(R.id.name).text = source.name.substringBeforeLast('.')
        card.findViewById<TextView>(R.id.card_detail).setText(R.string.offered)
        card.findViewById<View>(R.id.card_more).visibility = View.GONE
        card.findViewById<LinearLayout>(R.id.actions)
            .addView(action(getString(R.string.add_offered), R.style.Action) { app.bundles.add(source) })
        return card
    }

    private fun action(words: String, style: Int, act: () -> Unit): Button {
        val room = LinearLayout.LayoutParams(ViewGroup.LayoutParams.WRAP_CONTENT, ViewGroup.LayoutParams.WRAP_CONTENT)
        room.marginEnd = resources.getDimensionPixelSize(R.dimen.gap)
        return Button(ContextThemeWrapper(this, style), null, 0, style).apply {
            text = words
            layoutParams = room
            setOnClickListener { act() }
        }
    }

    private fun remove(entry: Entry) {
        AlertDialog.Builder(this)
            .setMessage(getString(R.string.remove_question, entry.title))
            .setPositiveButton(R.string.remove) { _, _ -> app.bundles.remove(entry) }
            .setNegativeButton(R.string.cancel, null)
            .show()
    }

    private fun pick() {
        try {
            startActivityForResult(Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), PICK)
        } catch (_: ActivityNotFoundException) {
            Toast.makeText(this, R.string.no_picker, Toast.LENGTH_LONG).show()
        }
    }

    @Deprecated("The platform's way without AndroidX.")
    override fun onActivityResult(request: Int, result: Int, data: Intent?) {
        val tree = data?.data ?: return
        if (request == PICK && result == RESULT_OK) app.bundles.add(TreeSource(contentResolver, tree))
    }

    private companion object {
        const val PICK = 1
    }
}
