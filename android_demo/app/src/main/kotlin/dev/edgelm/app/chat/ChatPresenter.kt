package dev.edgelm.app.chat

import dev.edgelm.EdgeException
import dev.edgelm.app.BundlePresenter
import dev.edgelm.app.model.ChatModel
import dev.edgelm.app.model.Conversation
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.text.Message
import java.io.File
import java.io.IOException
import java.util.UUID
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/**
 * What the chat screen shows.
 *
 * @property turns the user's and the model's, the last of which grows while [answering].
 * @property note about the last answer, or about the model.
 * @property problem why the model cannot answer; the screen offers to load it.
 * @property draft words that go back into the input, because nothing was answered to them.
 */
data class ChatState(
    val title: String,
    val detail: String = "",
    val turns: List<Message> = emptyList(),
    val answering: Boolean = false,
    val ready: Boolean = false,
    val loading: Boolean = false,
    val note: String = "",
    val problem: String? = null,
    val draft: String = "",
)

/** One conversation after another with one bundle. Outlives the screen; what is said is kept in [store]. */
class ChatPresenter(
    override val bundle: File,
    private val holder: ModelHolder,
    private val store: ConversationStore,
    private val scope: CoroutineScope,
    private val io: CoroutineDispatcher,
    private val clock: () -> Long = System::currentTimeMillis,
) : BundlePresenter {
    private val states = MutableStateFlow(ChatState(bundle.name.removeSuffix(".edge"), loading = true))
    private var id = newId()
    private var conversation: Conversation? = null
    private var answer: Job? = null
    private val watching = scope.launch {
        resume(withContext(io) { store.all(bundle.name).firstOrNull() })
        holder.state.collect(::onModel)
    }

    val state: StateFlow<ChatState> = states

    /** Load the model, also where it took the app down before. */
    fun loadAnyway() = holder.open(bundle, anyway = true)

    private fun onModel(model: ModelState) {
        val talker = model.of(bundle.name) as? ChatModel
        conversation = null
        states.update { it.copy(ready = false, loading = model.isLoading(bundle.name), problem = model.problem(bundle.name)) }
        with(talker ?: return) {
            states.update { it.copy(detail = "$context tokens, ${bytes / 1_000_000} MB") }
            if (!chats) {
                states.update { it.copy(problem = "$name has no chat format, so it cannot hold a conversation.") }
            } else {
                conversation = chat(states.value.turns)
                states.update { it.copy(ready = true) }
            }
        }
    }

    /** Say something. Nothing happens while an answer runs or the model is not there. */
    fun send(text: String) {
        val talk = conversation ?: return
        if (states.value.answering || text.isBlank()) return
        val asked = states.value.turns + Message("user", text.trim())
        states.update { it.copy(turns = asked + Message("assistant", ""), answering = true, note = "", draft = "") }
        val id = id
        answer = scope.launch {
            save(id)
            val said = StringBuilder()
            var note = "Stopped."
            try {
                talk.say(text.trim()).collect { words ->
                    said.append(words.text)
                    states.update { it.copy(turns = asked + Message("assistant", said.toString())) }
                    words.note?.let { note = it }
                }
            } catch (e: EdgeException) {
                note = e.message!!
            } finally {
                ended(id, asked, said.toString(), note)
            }
        }
    }

    /** A turn without an answer is taken back, and its words wait in the input. */
    private suspend fun ended(id: String, asked: List<Message>, said: String, note: String) = withContext(NonCancellable) {
        val kept = if (said.isBlank()) asked.dropLast(1) else asked + Message("assistant", said)
        val draft = if (said.isBlank()) asked.last().content else ""
        states.update { it.copy(turns = kept, answering = false, note = note, draft = draft) }
        save(id)
    }

    /** End the answer before its next token. What was said of it stays. */
    fun stop() {
        answer?.cancel()
    }

    /** Words in the input that are not sent yet. */
    fun keepDraft(text: String) = states.update { it.copy(draft = text) }

    /** Write what there is, for a process that may not come back. */
    fun keep() {
        scope.launch { save(id) }
    }

    private suspend fun save(id: String) {
        val now = states.value
        if (now.turns.isEmpty() && now.draft.isEmpty()) return
        try {
            withContext(io) { store.save(Stored(id, bundle.name, clock(), now.turns, now.draft)) }
        } catch (_: IOException) {
            states.update { it.copy(note = "The conversation could not be kept: the phone's storage may be full.") }
        }
    }

    /** Earlier conversations with this model, the latest first. */
    suspend fun earlier(): List<Stored> = withContext(io) { store.all(bundle.name).filter { it.id != id && it.turns > 0 } }

    /** Leave this conversation for a new one, or for [other]; [forget] deletes it. */
    fun begin(other: Stored? = null, forget: Boolean = false) {
        val before = id
        scope.launch {
            answer?.cancelAndJoin()
            resume(other ?: Stored(newId(), bundle.name, clock(), emptyList()))
            withContext(io) {
                conversation?.close()
                if (forget) store.delete(before)
            }
            onModel(holder.state.value)
        }
    }

    override fun close() {
        answer?.cancel()
        watching.cancel()
        val talk = conversation
        scope.launch(io) { talk?.close() }
    }

    /** Show what was kept. A question whose answer the process did not live to see goes back into the input. */
    private fun resume(kept: Stored?) {
        id = kept?.id ?: id
        val turns = kept?.messages.orEmpty().let { if (it.lastOrNull()?.content?.isBlank() == true) it.dropLast(1) else it }
        val open = turns.lastOrNull()?.takeIf { it.role == "user" }
        states.update {
            it.copy(
                turns = if (open == null) turns else turns.dropLast(1),
                draft = open?.content ?: kept?.draft.orEmpty(),
                note = "",
            )
        }
    }

    private companion object {
        fun newId() = UUID.randomUUID().toString()

        val Stored.turns: Int get() = messages.count { it.role == "user" }
    }
}
