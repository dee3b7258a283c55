"""The memory model: the private memory that a bundle takes, in bytes by kind, computed from its manifest before
anything is allocated.

Memory peaks twice, and the higher peak counts: while loading, reading the tokenizer leaves garbage next to the packed
weights; while running, the KV cache and the activations of the largest step are there. Pages of files (code, mapped
weights) do not count: the system takes them back when it needs room.

Sizes of tensors follow from the manifest. What the libraries add was measured: private memory from /proc/self/status
(Linux 6.18, x86-64, Python 3.11, numpy 2.4, onnxruntime 1.31.1, two threads) over SmolLM2-135M in 4 bits, a small T5
and random models. docs/lab/memory.md compares predictions and measurements.
"""

from __future__ import annotations

import dataclasses
import mmap
from dataclasses import dataclass

from edge.bundle import TOKENIZER, Bundle
from edge.errors import BundleError
from edge.manifest import FLOAT32, KV8, LONGER, SKIP, Dims, EncoderDims, TensorGroup
from edge.runtime.kernels.graph import attends_to_bytes, computes_experts
from edge.runtime.kernels.library import map_weights
from edge.runtime.kernels.rows import UNIT
from edge.runtime.limits import LASTING
from edge.runtime.mapped_file import mapped_file, unchanged
from edge.runtime.providers import instructions

MIB = 2**20
FLOAT = 4  # bytes
LATER = ("prefill", "tree", KV8, SKIP)  # graphs that are opened when they pay, instead of another one, or no longer
EXPERTS = "experts"  # the group of their matrices
ROWS = "rows"  # what the methods of groups begin with that have a scale for each row
GGUF_FLOATS = ("F16", "BF16")  # methods of groups of floats that our kernels read from files

IMPORTED = 26 * MIB + MIB // 4  # after importing what `edge.load` needs, the library of kernels included
SLACK = 4 * MIB  # by which programs differ that do little else
TO_LOAD = 2 * MIB  # more while sessions are made
TO_RUN = MIB  # more that steps take, and a chat template

# The tokenizers library, and what it makes of a tokenizer.json: 230 to 345 bytes for a token of BPE, by how full its
# tables are, and 6 times the file more while it reads; of a Unigram model a tree. Bundles from text to text read one
# without the library.
TOKENIZERS = MIB
BPE, BPE_READING = 270, 6
PIECE = 1400
OWN_PIECE, OWN_PIECE_READING = 300, 380

# A session's own objects: 24 times the size of the graph's file, 32 times where it has branches, and 0.75 MiB.
SESSION = 3 * MIB // 4
GRAPH, BRANCHED = 24, 32

# A kernel packs a float matrix as it is and blocks of integers with the sums of each block, a float, added (MLAS).
BLOCK_SUM = 4

# onnxruntime's arena in a step, in floats per token: multiples of the sizes of the first feed-forward product and of
# query, key and value, less what fits into memory that loading left. For steps of 16 to 256 tokens of seven models of
# hidden sizes 192 to 2048 that was off by -2 to +6 MiB.
STEP_FEED_FORWARD, STEP_ATTENTION, LEFT = 3.5, 2, 2 * MIB
CROSS_SCORES = 4  # copies of the scores over the encoder's rows: product, transposed, softmax, transposed back
# Copies of one layer's keys, or values, where the KV cache has int8: both as they are made, and with the new rows.
UNPACKED = 5
# An encoder runs all its rows at once, and reuses more. Feed-forward blocks with a gate keep the two halves of their
# first product next to it.
ENCODE_FEED_FORWARD, ENCODE_GATED = 2, 3
ENCODE_ATTENTION, ENCODE_RESIDUAL = 2, 1
ENCODE_CROSS = 2  # copies of one decoder layer's keys and values
# Copies of the scores [heads, T, T], where the encoder's attention keeps them, and of their bias; 3.0 to 3.5 were
# measured from 700 to 8,189 tokens.
SCORES = 3.15
# An encoder of sound, in floats per frame and hidden size: attention has queries, keys and values twice, its input and
# output; feed-forward blocks their input and three copies of their first product. Gaps were measured over windows of
# 30 s with random weights of Whisper base's shape.
SOUND_ATTENTION, SOUND_FEED_FORWARD, SOUND_GAPS = 8, 3, 1.75
WINDOWS = 4  # float copies of a window of sound, and its features
# A table of a transcription's tokens, and what reading it takes, in multiples of the size of tokenizer.json.
WORDS, WORDS_READING = MIB, 12
# What each of several answers takes at a time.
EACH = ("KV cache", "states", "activations", "logits", "cross-attention KV", "encoder activations")
SAMPLING = 3  # rows of logits that choosing a token works on, for each row


@dataclass(frozen=True)
class Demand:
    """The size of a run, for which memory is needed.

    Args:
        context: tokens of prompt and answer.
        chunk: maximum prompt tokens of one step.
        width: maximum tokens of any other step, each with a row of logits: beams, or a draft and the token before it.
        branches: texts in the KV cache, each with rows of its own: beams.
        source: tokens of an encoder's input; 0 for sound, of which a whole window counts.
        prefill: whether prompts are read in the int8 prefill graph, in steps that are twice as long.
        drafts: bytes of draft tables.
        kv: type of the KV cache.
    """

    context: int
    chunk: int
    width: int = 1
    branches: int = 1
    source: int = 0
    prefill: bool = False
    drafts: int = 0
    kv: str = FLOAT32


@dataclass(frozen=True)
class Footprint:
    """Private bytes by kind while loading and while running, each with the same kinds."""

    loading: dict[str, int]
    running: dict[str, int]

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind at the peak."""
        return max(self.loading, self.running, key=lambda kinds: sum(kinds.values()))

    @property
    def peak(self) -> int:
        """Private bytes at the peak."""
        return sum(self.kinds.values())


class MemoryModel:
    """The memory of one bundle under any `Demand`; BundleError where its tokenizer cannot be read. present: private
    bytes of this process so far, which count where they are clearly more than the libraries'."""

    def __init__(self, bundle: Bundle, present: int = 0) -> None:
        manifest = bundle.manifest
        self.manifest = manifest
        self._program = present if present > IMPORTED + SLACK else IMPORTED
        sizes = {file.path: file.size for file in manifest.files}
        self._graphs = sum(SESSION + GRAPH * sizes[graph.path] for graph in manifest.graphs if graph.role not in LATER)
        roles = {graph.role: sizes[graph.path] for graph in manifest.graphs}
        self._bytes = attends_to_bytes(bundle)
        branched = BRANCHED * roles.get(KV8, 0) - GRAPH * roles["decoder"]  # instead of the decoder's
        self._kv8 = 0 if self._bytes else branched  # our kernels need no branches
        self._tokenizer, self._reading = tokenizer_bytes(bundle, sizes[TOKENIZER])
        groups = {group.name: group for group in manifest.groups}
        looked = [group for name, group in groups.items() if name.endswith("embedding")]
        head = [groups["head"]] if "head" in groups else looked[:1]
        read = [group for name, group in groups.items() if not name.endswith(("embedding", "head", "norm"))] + head
        mapped = map_weights()
        ours = EXPERTS in groups and computes_experts(bundle)  # else onnxruntime packs them, whatever kernels there are
        self._packed = sum(packed_bytes(group, mapped and (ours or group.name != EXPERTS)) for group in read)
        self._prefill = 0
        if manifest.prefill is not None:  # the second session packs the head too, and holds the rotation twice
            packed = [*manifest.prefill.groups, *head]
            self._prefill = SESSION + GRAPH * sizes[manifest.graph("prefill").path] + sum(map(packed_bytes, packed))
            self._prefill += 2 * manifest.dims.hidden_size**2 * FLOAT
        dims = manifest.dims
        self._feed_forward = _width(groups.get("feed_forward"), dims, dims.intermediate_size)
        if manifest.encoder is not None:
            own = manifest.encoder
            self._encoder_feed_forward = _width(groups.get("encoder.feed_forward"), own, dims.intermediate_size)
            self._encoder = manifest.graph("encoder")
            if mapped:
                self._packed -= self._mapped_rows(groups)
            if self._encoder.precise_layers and "encoder.cross_attention" in groups:
                self._packed += packed_bytes(groups["encoder.cross_attention"])
                layers = packed_bytes(groups["encoder.attention"]) + packed_bytes(groups["encoder.feed_forward"])
                self._packed += layers * self._encoder.precise_layers // own.num_layers

    def _mapped_rows(self, groups: dict[str, TensorGroup]) -> int:
        """Bytes of an encoder's int8 products that our kernels read from files too: those of layers whose rows are
        rounded to 8 bits, where their inputs fill whole units."""
        own, cross = self.manifest.encoder, self.manifest.cross
        assert own is not None and cross is not None
        inner = own.num_heads * cross.layers[0].head_dim
        if any(size % UNIT for size in (own.hidden_size, self.manifest.dims.intermediate_size, inner)):
            return 0
        layers = [groups.get(f"encoder.{name}") for name in ("attention", "feed_forward")]
        rows = sum(group.bytes for group in layers if group is not None and group.method.startswith(ROWS))
        return rows * (own.num_layers - self._encoder.precise_layers) // own.num_layers

    def footprint(self, demand: Demand) -> Footprint:
        """Bytes by kind that a run of this demand needs."""
        graphs = self._graphs + (self._kv8 if demand.kv != FLOAT32 else 0)
        always = {"graphs": graphs, "packed weights": self._packed}
        loading = always | {"program": self._program + TO_LOAD, "tokenizer": self._reading}
        running = {
            "program": self._program + TO_RUN,
            "tokenizer": self._tokenizer,
            **always,
            "tables": self._tables(demand),
            "KV cache": self._cached(demand) * dataclasses.replace(self.manifest.kv, dtype=demand.kv).bytes_per_token,
            "activations": self._activations(demand),
            "logits": (2 * demand.width + SAMPLING) * self.manifest.dims.vocab_size * FLOAT,
        }
        if self.manifest.states:  # of a text, at the places that it may go back to, and before a draft
            copies = demand.branches * (1 + LASTING + 1)
            running["states"] = copies * self.manifest.state_bytes
        if demand.drafts:
            running["draft tables"] = demand.drafts
        if demand.prefill:
            running["int8 prefill graph"] = self._prefill
        if self.manifest.encoder is not None:
            running["cross-attention KV"] = self._rows(demand) * self._cross_bytes
            # Encoder and decoder share one arena, but the sum was measured: sizes differ too much to reuse memory.
            running["encoder activations"] = self._encoding(self._rows(demand))
        return Footprint({kind: loading.get(kind, 0) for kind in running}, running)

    def _cached(self, demand: Demand) -> int:
        """Tokens in the KV cache. Branches share none but a transcription's prompt, which takes half."""
        own = demand.context if self.manifest.speech is None else demand.context // 2
        return demand.context + (demand.branches - 1) * own

    def _tables(self, demand: Demand) -> int:
        """Tables of positions: cosines and sines for each base, or rows of the hidden size."""
        dims, encoder = self.manifest.dims, self.manifest.encoder
        if encoder is None:
            return demand.context * dims.head_dim * FLOAT * len({layer.window for layer in self.manifest.kv.layers})
        return (demand.context * dims.hidden_size + self._rows(demand) * encoder.hidden_size) * FLOAT

    def _rows(self, demand: Demand) -> int:
        """Rows that the encoder hands to the decoder."""
        encoder = self.manifest.encoder
        assert encoder is not None
        return encoder.max_length if encoder.input == "audio" else demand.source

    @property
    def _cross_bytes(self) -> int:
        """Bytes of keys and values for one of the encoder's rows."""
        return 0 if self.manifest.cross is None else self.manifest.cross.bytes_per_token

    def _activations(self, demand: Demand) -> int:
        """Bytes of the largest step of the decoder."""
        chunk = LONGER * demand.chunk if demand.prefill else demand.chunk
        dims, tokens = self.manifest.dims, max(min(chunk, demand.context), demand.width)
        attention = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim
        floats = STEP_FEED_FORWARD * self._feed_forward + STEP_ATTENTION * attention
        if self.manifest.encoder is not None:
            floats += CROSS_SCORES * dims.num_heads * self._rows(demand)
            floats += 2 * self._cached(demand)  # the attention bias of the host, and what the graph takes of it
        elif instructions.ARM:  # see the CPU's provider
            floats += dims.num_heads * demand.context
        unpacked = 0  # what a step of many tokens makes of one layer's rows, where the KV cache has int8
        if demand.kv != FLOAT32 and not self._bytes:
            row = max(layer.heads * layer.head_dim for layer in self.manifest.kv.layers)
            unpacked = UNPACKED * demand.context * row
        return max(0, round(tokens * floats + unpacked) * FLOAT - LEFT)

    def _encoding(self, rows: int) -> int:
        """Bytes of the encoder for this many rows; for sound, with the host's copies of a window."""
        encoder, cross, speech = self.manifest.encoder, self.manifest.cross, self.manifest.speech
        assert encoder is not None and cross is not None
        if speech is not None:
            widest = max(
                SOUND_ATTENTION * encoder.hidden_size,
                encoder.hidden_size + SOUND_FEED_FORWARD * self._encoder_feed_forward // self._encoder.parts,
            )
            return FLOAT * (round(rows * widest * SOUND_GAPS) + WINDOWS * speech.window_samples)
        attention = 3 * encoder.num_heads * cross.layers[0].head_dim
        gated = self._encoder_feed_forward > self.manifest.dims.intermediate_size
        feed_forward = rows * (ENCODE_GATED if gated else ENCODE_FEED_FORWARD) * self._encoder_feed_forward
        attending = rows * ENCODE_ATTENTION * attention
        if self._encoder.scores:
            floats = max(feed_forward, attending + round(rows**2 * SCORES * encoder.num_heads))
        else:
            floats = feed_forward + attending
        floats += rows * ENCODE_RESIDUAL * encoder.hidden_size
        return rows * ENCODE_CROSS * self._cross_bytes // len(cross.layers) + floats * FLOAT


def _width(group: TensorGroup | None, dims: Dims | EncoderDims, inner: int) -> int:
    """Values per token of a feed-forward block's first products: gate and up, or one where there is no gate; the last
    product reads `inner`."""
    return inner if group is None else max(inner, group.parameters // (dims.num_layers * dims.hidden_size) - inner)


def packed_bytes(group: TensorGroup, mapped: bool = False) -> int:
    """Bytes of a group's matrices as the kernels keep them, with zero points. mapped: those in blocks are in files."""
    if not group.block_size:
        return 0 if mapped and group.method in GGUF_FLOATS else group.parameters * FLOAT
    if group.method.startswith(ROWS):
        return group.bytes
    return 0 if mapped else group.bytes + group.parameters // group.block_size * BLOCK_SUM


def tokenizer_bytes(bundle: Bundle, size: int) -> tuple[int, int]:
    """Bytes of a tokenizer, and while it is read from a file of `size` bytes."""
    manifest, vocab = bundle.manifest, bundle.manifest.dims.vocab_size
    if manifest.speech is not None:
        return WORDS, WORDS + WORDS_READING * size
    if not _unigram(bundle):
        return TOKENIZERS + BPE * vocab, TOKENIZERS + BPE * vocab + BPE_READING * size
    if manifest.text is not None:
        return OWN_PIECE * vocab, OWN_PIECE_READING * vocab
    return (TOKENIZERS + PIECE * vocab,) * 2


def _unigram(bundle: Bundle) -> bool:
    """True if the tokenizer is a Unigram model. Its file is searched without a copy in private memory."""
    path = bundle.path(TOKENIZER)
    try:
        with (
            unchanged([mapped_file(path)]),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(b'"Unigram"') >= 0
    except (OSError, ValueError) as e:  # an empty file cannot be mapped
        raise BundleError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}.") from None
