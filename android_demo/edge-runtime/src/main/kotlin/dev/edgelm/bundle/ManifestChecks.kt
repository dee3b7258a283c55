package dev.edgelm.bundle

import java.text.Normalizer
import kotlinx.serialization.json.booleanOrNull

/**
 * What no export writes, in sentences: sizes that no model has, ids that its vocabulary does not have, files with odd
 * names. A manifest may come from a stranger, and what is built of it is as large as it says. The limits are Python's
 * (`edge.manifest_checks`).
 */
internal class ManifestChecks(private val manifest: Manifest) {
    /** The first fault; null where there is none. */
    fun fault(): String? = sequence {
        if (manifest.kind !in KINDS) yield("its kind is '${shown(manifest.kind)}'")
        yieldAll(sizes())
        yieldAll(layers("kv", manifest.kv))
        yieldAll(graphs())
        yieldAll(groups("groups", manifest.groups))
        manifest.prefill?.let { yieldAll(groups("prefill.groups", it.groups)) }
        yieldAll(tokens())
        manifest.generation?.let { yieldAll(generation(it)) }
        if (manifest.kind == KINDS[1]) yieldAll(encoder())
        manifest.speech?.let { yieldAll(speech(it)) }
        if (manifest.segments.isNotEmpty()) yieldAll(segments())
        yieldAll(files())
    }.firstOrNull()

    private suspend fun SequenceScope<String>.within(name: String, value: Number?, range: LongRange) {
        if (value != null && value.toLong() !in range) yield("$name is $value, and it is from ${range.first} to ${range.last}")
    }

    private fun sizes() = sequence {
        with(manifest.dims) {
            within("dims.num_layers", numLayers, 1L..MOST_LAYERS)
            within("dims.vocab_size", vocabSize, 1L..MOST_VOCAB)
            val others = mapOf(
                "hidden_size" to hiddenSize, "intermediate_size" to intermediateSize, "num_heads" to numHeads,
                "num_kv_heads" to numKvHeads, "head_dim" to headDim,
            )
            for ((name, value) in others) within("dims.$name", value, 1L..MOST_WIDTH)
        }
        within("context", manifest.context, 1L..MOST_TOKENS)
        val texts = with(manifest) { listOf("producer" to producer, "name" to name, "family" to family, "weights" to weights) }
        for ((name, text) in texts) if (text.length > LONGEST_TEXT) yield("$name has ${text.length} letters")
        if (manifest.kv.dtype != "float32") yield("kv.dtype is '${shown(manifest.kv.dtype)}'")
    }

    private fun layers(name: String, layout: KvLayout) = sequence {
        val count = manifest.dims.numLayers
        if (layout.layers.size != count) yield("$name.layers has ${layout.layers.size} entries for $count layers")
        for ((i, layer) in layout.layers.withIndex()) {
            // What one token takes of a layer is counted in 64 bits, and so is all of a conversation.
            val sized = layer.heads in 1L..MOST_WIDTH && layer.headDim in 1L..MOST_WIDTH
            if (!sized || layer.heads.toLong() * layer.headDim > MOST_WIDTH || (layer.window ?: 1) < 1) {
                yield("$name.layers[$i] has ${layer.heads} heads of ${layer.headDim} with window ${layer.window}")
            }
        }
    }

    private fun graphs() = sequence {
        val roles = manifest.graphs.map { it.role }
        if ("decoder" !in roles) yield("it has no graph with the role 'decoder'")
        if (roles.toSet().size != roles.size) yield("graphs has a role twice")
        if ((manifest.prefill == null) != ("prefill" !in roles)) {
            yield("the int8 prefill graph is described without its graph, or the graph without a description")
        }
        for (graph in manifest.graphs) {
            within("parts of the graph '${shown(graph.role)}'", graph.parts, 1L..MOST_WIDTH)
            within("precise_layers of the graph '${shown(graph.role)}'", graph.preciseLayers, 0L..MOST_LAYERS)
        }
    }

    private fun groups(name: String, groups: List<TensorGroup>) = sequence {
        if (groups.isEmpty()) yield("$name is empty")
        for ((i, group) in groups.withIndex()) {
            within("$name[$i].parameters", group.parameters, 1L..MOST_BYTES)
            within("$name[$i].bytes", group.bytes, 0L..MOST_BYTES)
            within("$name[$i].block_size", group.blockSize, 0L..MOST_WIDTH)
            if (!(group.bits > 0 && group.bits <= 64)) yield("$name[$i].bits is ${group.bits}")
        }
    }

    /** Ids that are no token of the vocabulary. What a text is filled up with may be none: no graph reads it here. */
    private fun tokens() = sequence {
        val named = linkedMapOf<String, List<Int?>>("bos" to listOf(manifest.tokens.bos), "eos" to manifest.tokens.eos)
        manifest.text?.let {
            named["text.prefix"] = it.prefix
            named["text.suffix"] = it.suffix
            named["text.decoder_start"] = it.decoderStart
            named["text.languages"] = it.languages.values.toList()
        }
        manifest.speech?.let {
            named["speech"] = listOf(it.start, it.noTimestamps, it.timestampBegin, it.noSpeech, it.previous)
            named["speech.languages"] = it.languages.values.toList()
            named["speech.tasks"] = it.tasks.values.toList()
            named["speech.suppress"] = it.suppress
            named["speech.begin_suppress"] = it.beginSuppress
        }
        manifest.generation?.let {
            named["generation"] = listOf(it.forcedBos, it.forcedEos)
            named["generation.suppress"] = it.suppress
            named["generation.begin_suppress"] = it.beginSuppress
            named["generation.bad_words"] = it.badWords.flatten()
        }
        within("tokens.pad", manifest.tokens.pad, 0L..MOST_TOKENS)
        val vocab = manifest.dims.vocabSize
        for ((name, ids) in named) {
            for (id in ids) if (id != null && id !in 0 until vocab) yield("$name has the token $id, and the vocabulary has $vocab")
        }
    }

    private fun generation(given: Generation) = sequence {
        within("generation.max_length", given.maxLength, 1L..MOST_TOKENS)
        within("generation.min_length", given.minLength, 0L..MOST_TOKENS)
        within("generation.num_beams", given.numBeams, 1L..MOST_BEAMS)
        within("generation.no_repeat_ngram_size", given.noRepeatNgramSize, 0L..MOST_TOKENS)
        if (given.lengthPenalty !in -MOST_PENALTY..MOST_PENALTY) yield("generation.length_penalty is ${given.lengthPenalty}")
        if (given.repetitionPenalty !in 1 / MOST_PENALTY..MOST_PENALTY) {
            yield("generation.repetition_penalty is ${given.repetitionPenalty}")
        }
        val early = given.earlyStopping
        if (early.isString && early.content != "never" || !early.isString && early.booleanOrNull == null) {
            yield("generation.early_stopping is '${shown(early.content)}'")
        }
        if (given.badWords.any { it.isEmpty() }) yield("generation.bad_words has an empty run of tokens")
    }

    private fun encoder() = sequence {
        val encoder = manifest.encoder
        val cross = manifest.cross
        if (encoder == null || cross == null) {
            yield("encoder or cross is missing")
            return@sequence
        }
        within("encoder.num_layers", encoder.numLayers, 1L..MOST_LAYERS)
        within("encoder.hidden_size", encoder.hiddenSize, 1L..MOST_WIDTH)
        within("encoder.num_heads", encoder.numHeads, 1L..MOST_WIDTH)
        if (cross.dtype != "float32") yield("cross.dtype is '${shown(cross.dtype)}'")
        yieldAll(layers("cross", cross))
        val format = when (encoder.input) {
            "text" -> manifest.text
            "audio" -> manifest.speech
            else -> "its encoder reads '${shown(encoder.input)}'".also { yield(it) }
        }
        if (format == null) yield("its encoder reads ${encoder.input}, and what that needs is missing")
        within("encoder.max_length", encoder.maxLength, 1L..(if (encoder.input == "text") MOST_TOKENS else MOST_FRAMES))
        if (encoder.input == "audio" && encoder.maxLength.toLong() * encoder.hiddenSize > MOST_ACTIVATIONS) {
            yield("its encoder has ${encoder.maxLength} frames of ${encoder.hiddenSize}")
        }
        val place = manifest.text?.sourceAt ?: ""
        if (place !in SOURCES) yield("text.source_at is '${shown(place)}'")
        if (manifest.graph("encoder") == null) yield("it has no graph with the role 'encoder'")
        if (manifest.speech != null && manifest.graph("frontend") == null) yield("it has no graph with the role 'frontend'")
    }

    private fun speech(speech: Speech) = sequence {
        within("speech.sample_rate", speech.sampleRate, 1L..MOST_RATE)
        within("speech.window_samples", speech.windowSamples, 1L..MOST_SAMPLES)
        within("speech.frames_per_second", speech.framesPerSecond, 1L..MOST_RATE)
        within("speech.max_initial_timestamp_index", speech.maxInitialTimestampIndex, 0L..MOST_VOCAB)
    }

    private fun segments() = sequence {
        val segments = manifest.segments
        val parts = segments.map { it.part }
        val middle = parts.drop(1).dropLast(1)
        val halves = middle.chunked(2).all { it == listOf("attention", "feed_forward") }
        if (parts.first() != "start" || parts.last() != "end" || !halves && middle.any { it != "layers" }) {
            yield("its segments are ${shown(parts.joinToString())}")
        }
        for (other in listOf("feed_forward", "attention")) {
            val layers = segments.filter { it.part != other }.flatMap { it.layers }
            if (layers != List(manifest.dims.numLayers) { it }) {
                yield("its segments do not have each of the ${manifest.dims.numLayers} layers once, in their order")
            }
        }
    }

    private fun files() = sequence {
        if (manifest.files.size > MOST_FILES) {
            yield("files has ${manifest.files.size} entries")
            return@sequence
        }
        val seen = hashSetOf(MANIFEST)
        for (file in manifest.files) {
            val parts = file.path.removePrefix("/").split('/') // what leads out of the bundle is told of elsewhere
            if (parts.any { it.isEmpty() || it == "." } || file.path.toByteArray().size > LONGEST_PATH) {
                yield("files has the path '${shown(file.path)}', which has a plainer form or is too long")
            }
            if (parts.any { it.toByteArray().size > LONGEST_NAME }) {
                yield("files has the path '${shown(file.path)}', a part of which is longer than $LONGEST_NAME bytes")
            }
            // On many systems they would be one file.
            if (!seen.add(Normalizer.normalize(file.path, Normalizer.Form.NFC).lowercase())) {
                yield("files has the path '${shown(file.path)}' twice")
            }
            within("the size of '${shown(file.path)}'", file.size, 0L..MOST_BYTES)
            if (!SHA256.matches(file.sha256)) yield("the sha256 of '${shown(file.path)}' is '${shown(file.sha256)}'")
        }
    }

    private fun shown(text: String) = text.take(SHOWN)

    private companion object {
        val KINDS = listOf("decoder", "encoder-decoder")
        val SOURCES = setOf("", "prefix", "suffix") // places of a source language's token
        val SHA256 = Regex("[0-9a-f]{64}")
        const val MOST_LAYERS = 1L shl 12
        const val MOST_WIDTH = 1L shl 20 // of a layer: its size, heads, and the size of a head
        const val MOST_VOCAB = 1L shl 24
        const val MOST_TOKENS = (1L shl 31) - 1 // of a text
        const val MOST_BYTES = 1L shl 50
        const val MOST_BEAMS = 1L shl 10
        const val MOST_SAMPLES = 1L shl 24 // of a window of sound
        const val MOST_FRAMES = 1L shl 16 // that an encoder makes of one
        const val MOST_ACTIVATIONS = 1L shl 23 // numbers of an encoder of sound between two layers
        const val MOST_RATE = 1L shl 20 // samples or frames a second
        const val MOST_FILES = 1 shl 12
        const val MOST_PENALTY = 32.0 // a length to this power is still a number
        const val LONGEST_TEXT = 1000 // letters of a name
        const val LONGEST_PATH = 1000 // bytes
        const val LONGEST_NAME = 255 // bytes of a part of a path, which systems take
        const val SHOWN = 60 // letters of what is wrong
    }
}
