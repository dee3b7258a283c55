package dev.edgelm.text

import dev.edgelm.BundleException
import java.io.File
import java.io.InputStream
import kotlinx.serialization.DeserializationStrategy
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.decodeFromStream

/** All of a `tokenizer.json` but its vocabulary. */
@Serializable
internal class TokenizerParts(
    @SerialName("added_tokens") val addedTokens: List<AddedToken> = emptyList(),
    val normalizer: JsonObject? = null,
    @SerialName("pre_tokenizer") val preTokenizer: JsonObject? = null,
    val decoder: JsonObject? = null,
    val model: ModelParts,
)

@Serializable
internal class ModelParts(
    val type: String? = null,
    @SerialName("unk_token") val unknownToken: String? = null,
    @SerialName("unk_id") val unknownId: Int? = null,
    @SerialName("fuse_unk") val fuseUnknown: Boolean? = null,
    @SerialName("byte_fallback") val byteFallback: Boolean? = null,
    @SerialName("ignore_merges") val ignoreMerges: Boolean? = null,
    val dropout: Double? = null,
    @SerialName("continuing_subword_prefix") val prefix: String? = null,
    @SerialName("end_of_word_suffix") val suffix: String? = null,
)

/**
 * Reads a `tokenizer.json` in two passes: the first for everything but the vocabulary, the second puts the vocabulary
 * into its tables as it comes. A tree of a large one would not fit into what a phone gives an app.
 */
internal class TokenizerFile(private val file: File) {
    private val json = Json { ignoreUnknownKeys = true }

    fun read(): Tokenizer {
        val parts = pass(TokenizerParts.serializer())
        val model = parts.model
        return Tokenizer(
            normalizer = parts.normalizer?.let(::normalizer),
            preTokenizer = parts.preTokenizer?.let(::preTokenizer),
            // Old files do not name the type.
            model = when (model.type ?: if (model.unknownId == null) "BPE" else "Unigram") {
                "BPE" -> bpe(model)
                "Unigram" -> unigram(model)
                else -> throw unknown("model", model.type)
            },
            decoder = parts.decoder?.let(::decoder),
            addedTokens = parts.addedTokens,
        )
    }

    private fun bpe(parts: ModelParts): Model {
        if (parts.dropout != null && parts.dropout != 0.0) throw BundleException("its model drops merges at random")
        if (!parts.prefix.isNullOrEmpty()) throw unknown("option", "continuing_subword_prefix")
        if (!parts.suffix.isNullOrEmpty()) throw unknown("option", "end_of_word_suffix")
        val read = BpeReader()
        pass(read.file)
        val pieces = read.pieces.build()
        val options = BpeOptions(
            unknown = parts.unknownToken,
            fuseUnknown = parts.fuseUnknown ?: false,
            byteFallback = parts.byteFallback ?: false,
            ignoreMerges = parts.ignoreMerges ?: false,
        )
        return Bpe(pieces, read.merges(pieces), options)
    }

    private fun unigram(parts: ModelParts): Model {
        val read = UnigramReader()
        pass(read.file)
        val count = read.pieces.count
        val unknown = parts.unknownId ?: -1
        if (parts.unknownId != null && unknown !in 0 until count) {
            throw BundleException("its unknown token $unknown is not one of its $count")
        }
        return Unigram(read.pieces.build(), read.scores.copyOf(count), unknown, parts.byteFallback ?: false)
    }

    @OptIn(ExperimentalSerializationApi::class)
    private fun <T> pass(into: DeserializationStrategy<T>): T =
        file.inputStream().use { stream: InputStream -> json.decodeFromStream(into, stream) }
}

internal fun unknown(kind: String, name: String?) = BundleException("its $kind $name is not known here")
