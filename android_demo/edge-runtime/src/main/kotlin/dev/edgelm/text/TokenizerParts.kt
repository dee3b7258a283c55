package dev.edgelm.text

import dev.edgelm.BundleException
import java.text.Normalizer as Forms
import java.util.Base64
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.intOrNull

/** The normalizer of a `tokenizer.json`; BundleException where it is not known. */
internal fun normalizer(part: JsonObject): Normalizer = when (val type = part.string("type")) {
    "Sequence" -> NormalizerSequence(part.parts("normalizers").map(::normalizer))
    "NFC", "NFD", "NFKC", "NFKD" -> UnicodeForm(Forms.Form.valueOf(type))
    "Lowercase" -> Lowercase
    "StripAccents" -> StripAccents
    "Strip" -> Strip(part.boolean("strip_left"), part.boolean("strip_right"))
    "Replace" -> Replace(part.pattern(), part.string("content"))
    "Prepend" -> Prepend(part.string("prepend"))
    "Precompiled" -> CharacterMap(base64(part.string("precompiled_charsmap")))
    "ByteLevel" -> ByteLevelNormalizer
    else -> throw unknown("normalizer", type)
}

/** The pre-tokenizer of a `tokenizer.json`; BundleException where it is not known. */
internal fun preTokenizer(part: JsonObject): PreTokenizer = when (val type = part.string("type")) {
    "Sequence" -> PreTokenizerSequence(part.parts("pretokenizers").map(::preTokenizer))
    "ByteLevel" -> {
        val pattern = if (part.boolean("use_regex", true)) Pattern.regex(ByteLevelSplit.GPT2) else null
        ByteLevelSplit(part.boolean("add_prefix_space"), pattern)
    }
    "Metaspace" -> Metaspace(part.mark(), part.scheme(), part.boolean("split", true))
    "Split" -> Split(part.pattern(), part.behavior(), part.boolean("invert"))
    "Punctuation" -> CharacterSplit(part.behavior(), Unicode::isPunctuation)
    "Digits" -> CharacterSplit(
        if (part.boolean("individual_digits")) Behavior.ISOLATED else Behavior.CONTIGUOUS,
        Unicode::isNumber,
    )
    "Whitespace" -> Whitespace
    "WhitespaceSplit" -> CharacterSplit(Behavior.REMOVED, Unicode::isSpace)
    else -> throw unknown("pre-tokenizer", type)
}

/** The decoder of a `tokenizer.json`; BundleException where it is not known. */
internal fun decoder(part: JsonObject): Decoder = when (val type = part.string("type")) {
    "Sequence" -> DecoderSequence(part.parts("decoders").map(::decoder))
    "ByteLevel" -> ByteLevelDecoder
    "Metaspace" -> MetaspaceDecoder(part.mark(), part.scheme())
    "ByteFallback" -> ByteFallback
    "Fuse" -> Fuse
    "Replace" -> ReplaceDecoder(part.pattern(), part.string("content"))
    "Strip" -> {
        val content = part.string("content")
        if (content.isEmpty()) throw wrong("content")
        StripDecoder(content.codePointAt(0), part.int("start"), part.int("stop"))
    }
    else -> throw unknown("decoder", type)
}

private fun wrong(key: String) = BundleException("its part $key is missing or not as it must be")

private fun JsonObject.string(key: String): String = this[key]?.takeIf { it !is JsonNull }?.string() ?: throw wrong(key)

private fun JsonObject.boolean(key: String, absent: Boolean? = null): Boolean = when (val value = this[key]) {
    null, JsonNull -> absent
    else -> (value as? JsonPrimitive)?.booleanOrNull
} ?: throw wrong(key)

private fun JsonObject.int(key: String): Int = (this[key] as? JsonPrimitive)?.intOrNull ?: throw wrong(key)

private fun JsonObject.parts(key: String): List<JsonObject> =
    (this[key] as? JsonArray)?.map { it as? JsonObject ?: throw wrong(key) } ?: throw wrong(key)

private fun JsonObject.mark(): Char = string("replacement").singleOrNull() ?: throw wrong("replacement")

private fun JsonObject.scheme(): Scheme {
    // Files from before there were schemes.
    if (!boolean("add_prefix_space", true)) return Scheme.NEVER
    val written = if ("prepend_scheme" in this) string("prepend_scheme") else Scheme.ALWAYS.written
    return Scheme.entries.find { it.written == written } ?: throw unknown("prepend_scheme", written)
}

private fun JsonObject.behavior(): Behavior {
    val written = if ("behavior" in this) string("behavior") else Behavior.ISOLATED.written
    return Behavior.entries.find { it.written == written } ?: throw unknown("behavior", written)
}

private fun JsonObject.pattern(): Pattern {
    val pattern = this["pattern"] as? JsonObject ?: throw wrong("pattern")
    pattern["String"]?.let { return Pattern.literal(it.string()) }
    return Pattern.regex((pattern["Regex"] ?: throw wrong("pattern")).string())
}

private fun base64(text: String): ByteArray = try {
    Base64.getDecoder().decode(text)
} catch (e: IllegalArgumentException) {
    throw BundleException("its character map is not in base 64", e)
}
