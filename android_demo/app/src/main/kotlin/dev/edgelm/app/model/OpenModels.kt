package dev.edgelm.app.model

import dev.edgelm.EdgeChat
import dev.edgelm.EdgeModel
import dev.edgelm.EdgeOptions
import dev.edgelm.EdgeText2Text
import dev.edgelm.EdgeTranscriber
import dev.edgelm.GenerateOptions
import dev.edgelm.Piece
import dev.edgelm.Text2TextOptions
import dev.edgelm.bundle.Bundle
import dev.edgelm.profile.DeviceName
import dev.edgelm.profile.Profile
import dev.edgelm.speech.TranscribeOptions
import dev.edgelm.text.Message
import java.io.File
import java.nio.ShortBuffer
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.map

/** Open a bundle of any kind with the library. EdgeException where that cannot be. */
fun openModel(bundle: File, options: EdgeOptions, device: DeviceName): LoadedModel {
    val manifest = Bundle.open(bundle).manifest
    return when {
        manifest.kind == "decoder" -> OpenChatModel(EdgeModel.open(bundle, options), device)
        manifest.speech != null -> OpenSpeechModel(EdgeTranscriber.open(bundle, options))
        else -> OpenTextModel(EdgeText2Text.open(bundle, options))
    }
}

private class OpenChatModel(private val model: EdgeModel, private val device: DeviceName) : ChatModel {
    override val name: String get() = model.bundle.manifest.name
    override val context: Int get() = model.context
    override val bytes: Long get() = model.plan.bytes
    override val chats: Boolean get() = model.hasChatFormat

    override fun chat(messages: List<Message>): Conversation = OpenChat(model.chat(messages))

    override fun profile(): Flow<Profile> = model.profile(device)

    override fun trim() = model.trim()

    override fun close() = model.close()
}

private class OpenChat(private val chat: EdgeChat) : Conversation {
    override val messages: List<Message> get() = chat.messages

    override fun say(message: String): Flow<Words> = chat.say(message, GenerateOptions(maxTokens = MOST)).map(::words)

    override fun close() = chat.close()

    private companion object {
        const val MOST = 1024 // tokens of an answer; small models may not find an end
    }
}

private class OpenTextModel(private val model: EdgeText2Text) : TextModel {
    private val format = model.bundle.manifest.text!!
    override val name: String get() = model.bundle.manifest.name
    override val bytes: Long get() = model.plan.bytes
    override val sources: List<String> get() = if (format.sourceAt.isEmpty()) emptyList() else model.languages
    override val targets: List<String> get() = model.languages
    override val source: String? get() = format.source
    override val target: String? get() = format.target

    override fun generate(text: String, from: String?, to: String?): Flow<Words> =
        model.generate(text, Text2TextOptions(sourceLanguage = from, targetLanguage = to)).map(::words)

    override fun trim() = model.trim()

    override fun close() = model.close()
}

private class OpenSpeechModel(private val model: EdgeTranscriber) : SpeechModel {
    override val name: String get() = model.bundle.manifest.name
    override val bytes: Long get() = model.plan.bytes
    override val sampleRate: Int get() = model.sampleRate
    override val languages: List<String> get() = model.languages

    override fun transcribe(pcm: ShortBuffer, language: String?): Flow<Line> =
        model.transcribe(pcm, TranscribeOptions(language = language)).map { Line(it.startSeconds, it.endSeconds, it.text) }

    override fun trim() = model.trim()

    override fun close() = model.close()
}

private fun words(piece: Piece) = Words(piece.text, piece.finish, piece.timings)
