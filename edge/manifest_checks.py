"""Checks of a manifest for values that no export writes: impossible sizes, ids outside the vocabulary, odd file names.

A manifest may come from a stranger, and buffers are as large as it says. So every number has a limit here, far above
any model's. Graphs and files are compared with the manifest where they are opened (`edge.runtime.engine.fits`,
`Bundle.check_sizes`): an engine needs that they agree, and inspecting a bundle does not.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from edge.embedding_format import EMBEDDER, RERANKER
from edge.external_file import faults as external_faults

if TYPE_CHECKING:
    from edge.manifest import File, KVLayout, Manifest, TensorGroup

KINDS = ("decoder", "encoder-decoder", EMBEDDER, RERANKER)
OF_VECTORS = (EMBEDDER, RERANKER)
SKIPPABLE = ("layers", "attention", "feed_forward")  # parts of segments
SOURCES = ("", "prefix", "suffix")  # places of a source language's token
MOST_LAYERS = 1 << 12
MOST_WIDTH = 1 << 20  # of a layer: its size, heads, and the size of a head
MOST_VOCAB = 1 << 24
MOST_IDS = 1 << 16  # of a list, where the vocabulary is smaller
MOST_TOKENS = (1 << 31) - 1  # of a text; graphs count them in 32 bits
MOST_BYTES = 1 << 50
MOST_STATES = 1 << 14
MOST_STATE = 1 << 26  # numbers of one
MOST_AXES = 6
MOST_BEAMS = 1 << 10
MOST_SAMPLES = 1 << 24  # of a window of sound
MOST_FRAMES = 1 << 16  # that an encoder makes of one
MOST_ACTIVATIONS = 1 << 23  # numbers of an encoder of sound between two layers; Whisper large has 2 million
MOST_RATE = 1 << 20  # samples or frames a second
MOST_FILES = 1 << 12
MOST_PENALTY = 32.0  # a length to this power is still a number
MOST_TEMPERATURE = 100.0
# Settings of what is drawn: the smallest and the largest value. A top-p of 0 would leave nothing.
DRAWN = {
    "temperature": (0.0, MOST_TEMPERATURE),
    "top_k": (0, MOST_VOCAB),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1 / MOST_PENALTY, MOST_PENALTY),
}
LONGEST_TEXT = 1000  # letters of a name
LONGEST_MARK = 60  # letters of what stands around thoughts
LONGEST_PATH = 1000  # bytes; systems take 4,096, of which the bundle's place takes some
LONGEST_NAME = 255  # bytes of a part of a path, which systems take
MANIFEST = "edge.json"


def faults(manifest: Manifest) -> Iterator[str]:
    """Yield the faults of a manifest, in sentences."""
    if manifest.kind not in KINDS:
        yield f"kind is {manifest.kind[:60]!r}, and this edge runs {', '.join(KINDS)}"
    yield from _size_faults(manifest)
    if manifest.states:
        yield from _state_faults(manifest)
    yield from _graph_faults(manifest)
    yield from _group_faults("groups", manifest.groups)
    if manifest.prefill is not None:
        yield from _group_faults("prefill.groups", manifest.prefill.groups)
    yield from token_faults(manifest, MOST_VOCAB)
    yield from _generation_faults(manifest)
    yield from _thinking_faults(manifest)
    if manifest.kind == "encoder-decoder":
        yield from _encoder_faults(manifest)
    yield from _embedding_faults(manifest)
    yield from _speech_faults(manifest)
    if manifest.segments:
        yield from _segment_faults(manifest)
    if manifest.files:
        yield from _file_faults(manifest.files)
    for i, file in enumerate(manifest.external):
        yield from (f"external[{i}].{fault}" for fault in external_faults(file))
    if len(manifest.external) > MOST_FILES:
        yield f"external has {len(manifest.external)} files"


def _outside(name: str, value: int | None, least: int, most: int) -> Iterator[str]:
    """A fault where a number is not from `least` to `most`; None is none."""
    if value is not None and not least <= value <= most:
        yield f"{name} is {value}, and it is from {least} to {most}"


def _size_faults(manifest: Manifest) -> Iterator[str]:
    limits = {"num_layers": MOST_LAYERS, "vocab_size": MOST_VOCAB}
    for name, value in dataclasses.asdict(manifest.dims).items():
        yield from _outside(f"dims.{name}", value, 1, limits.get(name, MOST_WIDTH))
    yield from _outside("context", manifest.context, 1, MOST_TOKENS)
    if manifest.short_rope is not None:
        yield from _outside("short_rope", manifest.short_rope, 1, manifest.context - 1)
    for name in ("producer", "name", "family", "weights"):
        if len(text := getattr(manifest, name)) > LONGEST_TEXT:
            yield f"{name} has {len(text)} letters"
    for name, figure in manifest.quality.items():
        if not math.isfinite(figure):
            yield f"quality.{name[:100]} is {figure}"
    if manifest.kv.dtype != "float32":
        yield f"kv.dtype is {manifest.kv.dtype[:60]!r}, and this edge keeps float32"
    layers = 0 if manifest.kind in OF_VECTORS else manifest.dims.num_layers  # nothing is kept of a text
    yield from _layer_faults("kv", manifest.kv, layers, {state.layer for state in manifest.states}, sharing=True)


def _layer_faults(
    name: str, layout: KVLayout, layers: int, others: Container[int] = (), *, sharing: bool = False
) -> Iterator[str]:
    """Faults of the layers of a cache. others: layers that need none, because they keep something else. sharing: so do
    those that read an earlier layer's."""
    if len(layout.layers) != layers:
        yield f"{name}.layers has {len(layout.layers)} entries for {layers} layers"
    for i, layer in enumerate(layout.layers):
        if (i in others or (sharing and i)) and (layer.heads, layer.head_dim, layer.window) == (0, 0, None):
            continue
        sized = 1 <= layer.heads <= MOST_WIDTH and 1 <= layer.head_dim <= MOST_WIDTH
        if not sized or (layer.window is not None and not 1 <= layer.window <= MOST_TOKENS):
            yield f"{name}.layers[{i}] has {layer.heads} heads of {layer.head_dim} with window {layer.window}"


def _state_faults(manifest: Manifest) -> Iterator[str]:
    names = [state.input for state in manifest.states]
    if len(names) > MOST_STATES or len(set(names)) != len(names):
        yield f"states has {len(names)} entries, {len(set(names))} of them with different names"
        return
    for i, state in enumerate(manifest.states):
        yield from _outside(f"states[{i}].layer", state.layer, 0, manifest.dims.num_layers - 1)
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", state.name) or state.name in ("key", "value"):
            yield f"states[{i}].name is {state.name[:60]!r}, and it is a word in small letters, not key or value"
        sized = 1 <= len(state.shape) <= MOST_AXES and all(1 <= size <= MOST_WIDTH for size in state.shape)
        if not sized or math.prod(state.shape) > MOST_STATE:
            yield f"states[{i}].shape is {str(state.shape[:MOST_AXES])[:100]}"
        if state.dtype != "float32":
            yield f"states[{i}].dtype is {state.dtype[:60]!r}, and this edge keeps float32"
    # Tokens that a step repeats or leaves out, and texts that are run again, would be in the states.
    there: dict[str, object] = {
        "speech": manifest.speech,
        "prefill": manifest.prefill,
        "segments": manifest.segments,
        "short_rope": manifest.short_rope,
    }
    for name, value in there.items():
        if value:
            yield f"states and {name} are both there, and this edge runs no such model"


def _graph_faults(manifest: Manifest) -> Iterator[str]:
    roles = [graph.role for graph in manifest.graphs]
    needed = EMBEDDER if manifest.kind in OF_VECTORS else "decoder"
    if roles and needed not in roles:  # else it has graphs for a device alone
        yield f"graphs has none with the role {needed!r}"
    if len(set(roles)) != len(roles):
        yield "graphs has a role twice"
    if (manifest.prefill is None) != ("prefill" not in roles):
        yield "the int8 prefill graph is described without its graph, or the graph without a description"
    for graph in manifest.graphs:
        yield from _outside(f"parts of the graph {graph.role[:60]!r}", graph.parts, 1, MOST_WIDTH)
        yield from _outside(f"precise_layers of the graph {graph.role[:60]!r}", graph.precise_layers, 0, MOST_LAYERS)


def _group_faults(name: str, groups: list[TensorGroup]) -> Iterator[str]:
    if not groups:
        yield f"{name} is empty"
    for i, group in enumerate(groups):
        if not 1 <= group.parameters <= MOST_BYTES:
            yield f"the group {group.name[:100]!r} has {group.parameters} parameters"
        yield from _outside(f"{name}[{i}].bytes", group.bytes, 0, MOST_BYTES)
        yield from _outside(f"{name}[{i}].block_size", group.block_size, 0, MOST_WIDTH)
        if not 0 < group.bits <= 64:
            yield f"{name}[{i}].bits is {group.bits}"


def token_faults(manifest: Manifest, vocab: int) -> Iterator[str]:
    """Ids that are no token of a vocabulary. What a text is filled up with may be none: no graph reads it here."""
    tokens, text, speech, generation = manifest.tokens, manifest.text, manifest.speech, manifest.generation
    named: dict[str, Iterable[int | None]] = {"tokens.bos": [tokens.bos], "tokens.eos": tokens.eos}
    if manifest.embedding is not None:
        named |= {f"embedding.{name}": getattr(manifest.embedding, name) for name in ("prefix", "suffix")}
        if manifest.embedding.pair is not None:
            named["embedding.pair.between"] = manifest.embedding.pair.between
    if text is not None:
        named |= {f"text.{name}": getattr(text, name) for name in ("prefix", "suffix", "decoder_start")}
        named["text.languages"] = text.languages.values()
    if speech is not None:
        for name in ("start", "no_timestamps", "timestamp_begin", "no_speech", "previous"):
            named[f"speech.{name}"] = [getattr(speech, name)]
        named |= {"speech.languages": speech.languages.values(), "speech.tasks": speech.tasks.values()}
        named |= {"speech.suppress": speech.suppress, "speech.begin_suppress": speech.begin_suppress}
    if generation is not None:
        for name in ("forced_bos", "forced_eos"):
            named[f"generation.{name}"] = [getattr(generation, name)]
        for name in ("suppress", "begin_suppress"):
            named[f"generation.{name}"] = getattr(generation, name)
        named["generation.bad_words"] = [token for word in generation.bad_words for token in word]
    yield from _outside("tokens.pad", tokens.pad, 0, MOST_TOKENS)
    for name, ids in named.items():
        if (count := len(ids := list(ids))) > max(vocab, MOST_IDS):
            yield f"{name} has {count} tokens, and the vocabulary {vocab}"
        for token in ids:
            if token is not None and not 0 <= token < vocab:
                yield f"{name} has the token {token}, and the vocabulary has {vocab}"


def _generation_faults(manifest: Manifest) -> Iterator[str]:
    given = manifest.generation
    if given is None:
        return
    yield from _outside("generation.max_length", given.max_length, 1, MOST_TOKENS)
    yield from _outside("generation.min_length", given.min_length, 0, MOST_TOKENS)
    yield from _outside("generation.num_beams", given.num_beams, 1, MOST_BEAMS)
    yield from _outside("generation.no_repeat_ngram_size", given.no_repeat_ngram_size, 0, MOST_TOKENS)
    if not -MOST_PENALTY <= given.length_penalty <= MOST_PENALTY:
        yield f"generation.length_penalty is {given.length_penalty}, and at most {MOST_PENALTY:g} either way"
    for name, (least, most) in DRAWN.items():
        if not least <= (value := getattr(given, name)) <= most:
            yield f"generation.{name} is {value:g}, and it is from {least:g} to {most:g}"
    if given.early_stopping not in (True, False, "never"):
        yield f"generation.early_stopping is {str(given.early_stopping)[:60]!r}"
    if not all(given.bad_words):
        yield "generation.bad_words has an empty run of tokens"


def _thinking_faults(manifest: Manifest) -> Iterator[str]:
    given = manifest.thinking
    if given is None:
        return
    for name, text in (("open", given.open), ("close", given.close), *(("words", word) for word in given.words)):
        if not text.strip() or len(text) > LONGEST_MARK:
            yield f"thinking.{name} has {len(text)} letters, and it has 1 to {LONGEST_MARK} that are not blank"
    if given.open == given.close:
        yield f"thinking.open and thinking.close are both {given.open[:LONGEST_MARK]!r}"
    if len(given.after) > LONGEST_MARK or (given.after.strip() and not given.answer):  # an older edge refuses channels
        yield f"thinking.after is {given.after[:LONGEST_MARK]!r}, and it is blank"
    if given.answer and (not given.answer.strip() or not given.after.endswith(given.answer)):
        yield f"thinking.answer is {given.answer[:LONGEST_MARK]!r}, and thinking.after ends with it"
    if given.variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", given.variable):
        yield f"thinking.variable is {given.variable[:LONGEST_MARK]!r}, which is no name of a variable"
    if len(given.words) not in (0, 2):
        yield f"thinking.words has {len(given.words)} entries, and it has two or none"


def _encoder_faults(manifest: Manifest) -> Iterator[str]:
    encoder, cross = manifest.encoder, manifest.cross
    if encoder is None or cross is None:
        yield "encoder or cross is missing"
        return
    yield from _outside("encoder.num_layers", encoder.num_layers, 1, MOST_LAYERS)
    yield from _outside("encoder.hidden_size", encoder.hidden_size, 1, MOST_WIDTH)
    yield from _outside("encoder.num_heads", encoder.num_heads, 1, MOST_WIDTH)
    if cross.dtype != "float32":
        yield f"cross.dtype is {cross.dtype[:60]!r}, and this edge keeps float32"
    yield from _layer_faults("cross", cross, manifest.dims.num_layers)
    needed = {"text": manifest.text, "audio": manifest.speech}
    if encoder.input not in needed:
        yield f"encoder.input is {encoder.input[:60]!r}, and this edge reads {', '.join(needed)}"
        return
    if needed[encoder.input] is None:
        yield f"encoder.input is {encoder.input!r}, and what that needs is missing"
    most = MOST_TOKENS if encoder.input == "text" else MOST_FRAMES
    yield from _outside("encoder.max_length", encoder.max_length, 1, most)
    if encoder.input == "audio" and encoder.max_length * encoder.hidden_size > MOST_ACTIVATIONS:
        yield f"encoder has {encoder.max_length} frames of {encoder.hidden_size}"
    text = manifest.text
    if text is not None and text.source_at not in SOURCES:
        yield f"text.source_at is {text.source_at[:60]!r}, and it is prefix, suffix or empty"


def _embedding_faults(manifest: Manifest) -> Iterator[str]:
    given = manifest.embedding
    if (given is None) != (manifest.kind not in OF_VECTORS):
        yield f"embedding is {'missing' if given is None else 'there'}, and kind is {manifest.kind[:60]!r}"
    if given is None:
        return
    yield from given.faults(manifest.context)
    if (given.pair is None) != (manifest.kind == EMBEDDER):
        yield f"embedding.pair is {'missing' if given.pair is None else 'there'}, and kind is {manifest.kind!r}"
    others = ("encoder", "cross", "text", "speech", "prefill", "segments", "states", "short_rope", "routers")
    for name in (name for name in others if getattr(manifest, name)):
        yield f"embedding and {name} are both there, and this edge runs no such model"


def _speech_faults(manifest: Manifest) -> Iterator[str]:
    speech = manifest.speech
    if speech is None:
        return
    if not manifest.tokens.eos:
        yield "tokens.eos is empty, and a transcription ends with such a token"
    yield from _outside("speech.sample_rate", speech.sample_rate, 1, MOST_RATE)
    yield from _outside("speech.window_samples", speech.window_samples, 1, MOST_SAMPLES)
    yield from _outside("speech.frames_per_second", speech.frames_per_second, 1, MOST_RATE)
    yield from _outside("speech.max_initial_timestamp_index", speech.max_initial_timestamp_index, 0, MOST_VOCAB)


def _segment_faults(manifest: Manifest) -> Iterator[str]:
    parts = [segment.part for segment in manifest.segments]
    if parts[0] != "start" or parts[-1] != "end" or not set(parts[1:-1]) <= set(SKIPPABLE):
        yield f"segments are {', '.join(parts)[:200]!r}"
    for part in ("attention", "feed_forward"):  # a layer has its rows in the KV cache from one segment
        layers = [i for s in manifest.segments if s.part in (part, "start", "layers", "end") for i in s.layers]
        if layers != list(range(manifest.dims.num_layers)):
            yield f"segments have the layers {str(layers[:100])[:200]}"
            return


def _file_faults(files: list[File]) -> Iterator[str]:
    if len(files) > MOST_FILES:
        yield f"files has {len(files)} entries"
        return
    seen: dict[str, str] = {MANIFEST: "the manifest"}
    for file in files:
        shown = file.path[:100]
        pure = PurePosixPath(file.path)
        if file.path and (str(pure) != file.path or len(file.path.encode()) > LONGEST_PATH):
            yield f"files has the path {shown!r}, which has a plainer form or is too long"
        if any(len(part.encode()) > LONGEST_NAME for part in pure.parts):
            yield f"files has the path {shown!r}, a part of which is longer than {LONGEST_NAME} bytes"
        folded = _folded(file.path)
        if folded in seen:
            yield f"files has the path {shown!r}, which is {seen[folded][:100]!r} too"
        seen[folded] = file.path
        yield from _outside(f"the size of {shown!r}", file.size, 0, MOST_BYTES)
        if not re.fullmatch("[0-9a-f]{64}", file.sha256):
            yield f"the sha256 of {shown!r} is {file.sha256[:80]!r}"


def _folded(path: str) -> str:
    """Return a path as a file system that ignores case and Unicode forms compares it. Two paths with the same result
    would be one file there."""
    if path.isascii():
        return path.lower()
    import unicodedata

    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
