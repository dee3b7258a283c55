package dev.edgelm.app.latency

import dev.edgelm.EdgeException
import dev.edgelm.InputException
import dev.edgelm.app.model.ChatModel
import dev.edgelm.app.model.ModelHolder
import dev.edgelm.app.model.ModelState
import dev.edgelm.profile.Profile
import java.io.File
import java.io.IOException
import kotlinx.coroutines.flow.first

/** Where the last whole profile of a bundle is kept, in the format of docs/reference/profile-format.md. */
fun profileFile(folder: File, bundle: File): File = File(folder, bundle.name.removeSuffix(".edge") + ".profile.json")

/** Write a profile whole. EdgeException where there is no room. */
fun keep(profile: Profile, file: File) = try {
    file.parentFile!!.mkdirs()
    file.writeText(profile.toJson())
} catch (_: IOException) {
    throw EdgeException("The profile could not be kept: the phone's storage may be full.")
}

/**
 * Measure a model that [holder] was asked to open, without a screen; the profile is kept in [file]. [say] is told each
 * figure that was measured.
 *
 * @throws EdgeException it cannot be loaded or measured.
 */
suspend fun measure(bundle: File, holder: ModelHolder, file: File, say: (String) -> Unit) {
    val state = holder.state.first { it.bundle == bundle.name && it !is ModelState.Loading }
    state.problem(bundle.name)?.let { throw InputException(it) }
    val model = state.of(bundle.name) as? ChatModel ?: throw InputException("Only chat models are measured so far.")
    var last: Profile? = null
    model.profile().collect { profile ->
        last = profile
        say(profile.newest)
    }
    keep(last!!.run { copy(notes = notes + UNSEEN) }, file)
}

private const val UNSEEN = "Measured without a screen: Android may give faster cores to an app that is on it."

/** What was measured last. */
private val Profile.newest: String get() = when {
    decode.isEmpty() -> "first token after ${ttft.last().inputTokens} tokens"
    (curve + curveInt8).none { it.context == decode.last().context } -> "token at context ${decode.last().context}"
    else -> "steps at context ${decode.last().context}"
}
