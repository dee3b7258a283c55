"""The manifest, `edge.json`: what a host must know to run a bundle, as typed dataclasses.

docs/reference/bundle-format.md describes the same fields for people who write a reader in another language.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

from edge.embedding_format import EmbeddingFormat
from edge.errors import BundleError, EdgeError
from edge.external_file import ExternalFile
from edge.manifest_checks import faults
from edge.typed_json import read_json, typed

FORMAT_VERSION = 2  # 1 was never released: its graphs had no symbolic batch dimension
# Steps of the int8 prefill graph are so many times as long: 256 tokens were 10% faster than 128, and as fast as 512.
LONGER = 2
PREFILL_VERSION = 1
KV_DTYPES = {"float32": 4, "int8": 1}  # bytes of one value
FLOAT32, INT8 = KV_DTYPES  # of the KV cache
KV8 = "kv8"  # the role of the decoder's graph over a cache in int8
SKIP = "skip"  # the role of its graph in units that a step may leave out
KV8_STEP = 8  # tokens of a step up to which that graph attends to bytes
CHECKSUM = "crc32"  # the last field; SHA-256 would bring 3 MB of OpenSSL into every run


@dataclass(frozen=True)
class Dims:
    """Sizes of the decoder, under the names that transformers' configurations use."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


@dataclass(frozen=True)
class Graph:
    """One ONNX file. Roles: ``decoder``, ``prefill``, ``kv8``, ``skip``, ``encoder``, for speech ``frontend``, and of
    a model that makes vectors or scores pairs ``embedder``."""

    role: str
    path: str
    batch: bool = False  # a step may take a token of each of several sequences
    trees: bool = False  # a step's tokens need not follow each other: it has the input `attention_bias`
    tokens: bool = False  # it has the likeliest tokens as an output
    scores: bool = True  # some attention has all its scores in memory at a time
    parts: int = 1  # of the rows of an encoder, which feed-forward blocks take one after the other
    precise_layers: int = 1  # of an encoder, from the first on, that read rows in 16 bits and are packed twice


@dataclass(frozen=True)
class KVLayer:
    """KV buffers of one layer, `past.{i}.key/value`: [1, heads, capacity, head_dim]; 0 heads: it reads another's."""

    heads: int
    head_dim: int
    window: int | None = None  # sliding-window length, None where every past token is attended to


@dataclass(frozen=True)
class KVLayout:
    dtype: str
    layers: list[KVLayer]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in every layer's buffers."""
        return sum(2 * layer.heads * layer.head_dim * KV_DTYPES[self.dtype] for layer in self.layers)


@dataclass(frozen=True)
class State:
    """A state of a recurrent or convolutional layer, `past.{layer}.{name}`: [1, *shape], however long the text is. A
    layer that has nothing else has 0 heads of 0 in the KV layout."""

    layer: int
    name: str
    shape: list[int]
    dtype: str = "float32"

    @property
    def input(self) -> str:
        """Its name in the graphs."""
        return f"past.{self.layer}.{self.name}"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * KV_DTYPES[self.dtype]


@dataclass(frozen=True)
class EncoderDims:
    """Sizes of an encoder, and the kind of its input."""

    num_layers: int
    hidden_size: int
    num_heads: int
    max_length: int  # maximum rows that it hands to the decoder: tokens of text, or frames of audio
    input: str  # "text": input_ids; "audio": what the frontend graph makes of samples
    values_transposed: bool = False  # cross.{i}.value is [1, heads, head_dim, T], not [1, heads, T, head_dim]
    any_length: bool = False  # of audio: it takes less than a window of sound, and any text encoder does


@dataclass(frozen=True)
class TensorGroup:
    """Storage of one group of weights: ``embedding``, ``attention``, ``feed_forward``, ``head`` or ``norm``."""

    name: str
    parameters: int
    bytes: int  # weights, scales and zero points in weights.bin; shared bytes are counted once, in the first group
    bits: float  # bits of one stored weight, averaged over the group, without scales and zero points
    block_size: int  # weights that share one scale; 0 where the group is float
    method: str


@dataclass(frozen=True)
class PrefillGraph:
    """The int8 prefill graph: the decoder's layers for steps of many tokens, over the same cache."""

    weights: str  # int8
    version: int  # of what a host must know to run it
    groups: list[TensorGroup]  # what it has of its own

    @property
    def known(self) -> bool:
        """True if this runtime can run it."""
        return self.version == PREFILL_VERSION and self.weights == "int8"


@dataclass(frozen=True)
class Segment:
    """A unit of the graph `skip`; a decoder has either none or all, in the order they run.

    part: ``start`` (embedding and first layer), ``layers``, or ``attention`` and ``feed_forward`` in turns, ``end``
    (last layer, final norm and head). Those in between can be left out.
    """

    part: str
    layers: list[int]


@dataclass(frozen=True)
class Tokens:
    """Special token ids."""

    bos: int | None
    eos: list[int]
    pad: int | None
    add_bos: bool  # the tokenizer's text post-processing is not used: a host adds `bos` itself where this is true

    @property
    def lead(self) -> list[int]:
        """Tokens that the model reads before every text: `bos` where the model wants it, else none."""
        return [self.bos] if self.add_bos and self.bos is not None else []

    def led(self, ids: list[int]) -> list[int]:
        """Return the ids of a complete text, with `lead` in front if they lack it."""
        return ids if ids[: len(self.lead)] == self.lead else [*self.lead, *ids]

    @property
    def named(self) -> dict[str, int | None]:
        """The ids by the names that chat templates and transformers have for them."""
        return {"bos_token": self.bos, "eos_token": next(iter(self.eos), None), "pad_token": self.pad}


@dataclass(frozen=True)
class ChatSlot:
    """A place for a message in a conversation."""

    before: str  # the text in front of the message
    trim_start: bool = False  # the message loses the whitespace at its start
    trim_end: bool = False
    blank: bool = False  # the message may be empty, or whitespace alone


@dataclass(frozen=True)
class ChatFormat:
    """The output of the chat template, in slots for a host without jinja2. It covers at most one system message, then
    messages of the user and the assistant in turns, the user's last."""

    first_user: ChatSlot | None  # that nothing precedes; None: a conversation needs a system message
    system: ChatSlot | None  # None: a conversation cannot have one
    user_after_system: ChatSlot | None
    assistant: ChatSlot
    user: ChatSlot  # that follows an answer
    generation: str  # what follows the last message
    refused: list[str] = field(default_factory=list)  # a message with one of these renders in another way


@dataclass(frozen=True)
class TextFormat:
    """The frame of a text in an encoder's input, and the tokens that a text decoder begins with.

    A multilingual model has `languages`, code -> token id. The source's token is the first or last of the input
    (`source_at`: "prefix", "suffix", or "" where there is none); the target's token follows `decoder_start` where
    `target_at_start` is true, or is the input's first where `target_in_source` is.
    """

    prefix: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    decoder_start: list[int] = field(default_factory=list)
    languages: dict[str, int] = field(default_factory=dict)
    source_at: str = ""
    target_at_start: bool = False
    target_in_source: bool = False
    source: str | None = None  # the languages where none are asked for
    target: str | None = None


@dataclass(frozen=True)
class Speech:
    """Settings that a host needs to transcribe: the audio's format and the ids of Whisper's special tokens."""

    sample_rate: int
    window_samples: int  # that one run of the encoder takes
    start: int  # <|startoftranscript|>
    no_timestamps: int
    timestamp_begin: int  # <|0.00|>; each further id is 20 ms later
    languages: dict[str, int] = field(default_factory=dict)  # code -> token id; empty: English alone
    tasks: dict[str, int] = field(default_factory=dict)  # transcribe, translate
    no_speech: int | None = None
    previous: int | None = None  # <|startofprev|>
    suppress: list[int] = field(default_factory=list)
    begin_suppress: list[int] = field(default_factory=list)
    frames_per_second: int = 50  # of the encoder's output
    max_initial_timestamp_index: int | None = 50


@dataclass(frozen=True)
class Generation:
    """The checkpoint's own defaults for generating, as transformers' generation_config.json names them."""

    max_length: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False  # or "never"
    no_repeat_ngram_size: int = 0
    forced_bos: int | None = None
    forced_eos: int | None = None
    suppress: list[int] = field(default_factory=list)  # never generated
    begin_suppress: list[int] = field(default_factory=list)  # never the first of what is generated freely
    bad_words: list[list[int]] = field(default_factory=list)  # runs of tokens that are never generated
    repetition_penalty: float = 1.0
    min_length: int = 0  # both with the decoder's first tokens
    do_sample: bool = False  # a decoder's chats draw tokens where nobody asks for anything else
    temperature: float = 1.0  # this and the next three: of what is drawn
    top_k: int = 0  # 0: from all tokens
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def sampling(self) -> str:
        """The sampling settings of a chat in words, "temperature 0.6, top-k 20"; empty where nothing is set."""
        drawn = {
            "temperature": (self.temperature, None),
            "top-k": (self.top_k, 0),
            "top-p": (self.top_p, 1),
            "min-p": (self.min_p, 0),
        }
        set_here = drawn if self.do_sample and self.temperature > 0 else {}
        set_here |= {"repetition penalty": (self.repetition_penalty, 1)}
        return ", ".join(f"{name} {value:.4g}" for name, (value, neutral) in set_here.items() if value != neutral)


@dataclass(frozen=True)
class Thinking:
    """The marks around a model's thoughts, which come before what it says, and how its chat template switches them."""

    open: str
    close: str
    after: str = "\n\n"  # that stands between the closing mark and the answer
    variable: str | None = None  # of the template: true or false
    words: list[str] = field(default_factory=list)  # in the system message: to think, and not to
    default: bool = True  # whether it thinks where nobody asks for either
    answer: str = ""  # the mark of an answer that is a message of a channel, as its thoughts are


@dataclass(frozen=True)
class Source:
    """The origin of the weights."""

    name: str
    kind: str  # directory, hub, gguf or catalog
    licence: str | None = None


@dataclass(frozen=True)
class File:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of `edge.json`."""

    format_version: int
    producer: str
    name: str
    family: str
    kind: str  # "decoder", "encoder-decoder", "embedder" or "reranker"
    weights: str  # the export's --weights
    dims: Dims
    context: int  # maximum tokens (prompt and answer) that the graphs can take
    graphs: list[Graph]
    kv: KVLayout
    groups: list[TensorGroup]
    tokens: Tokens
    chat_template: str | None  # jinja2, as transformers' tokenizers carry it
    source: Source
    chat_format: ChatFormat | None = None  # what it renders; None where it cannot be said so
    encoder: EncoderDims | None = None
    cross: KVLayout | None = None  # what the encoder hands to each decoder layer, `cross.{i}.key/value`
    text: TextFormat | None = None  # of an encoder-decoder for text
    speech: Speech | None = None  # of one for audio
    embedding: EmbeddingFormat | None = None  # of a model that makes vectors of texts, or scores pairs
    generation: Generation | None = None
    thinking: Thinking | None = None  # of a decoder whose chats may think before they answer
    quality: dict[str, float] = field(default_factory=dict)  # figures of the check against the model in float32
    prefill: PrefillGraph | None = None
    short_rope: int | None = None  # LongRoPE: texts of so many tokens at most have position context + p in place of p
    segments: list[Segment] = field(default_factory=list)
    routers: str | None = None  # the file with a router's weights for each segment that can be left out
    states: list[State] = field(default_factory=list)  # what layers keep of a text besides rows, or instead of them
    external: list[ExternalFile] = field(default_factory=list)  # tensors of `external.<i>` lie in these
    files: list[File] = field(default_factory=list)

    def graph(self, role: str) -> Graph:
        """The graph with this role; BundleError names the roles there are."""
        for graph in self.graphs:
            if graph.role == role:
                return graph
        have = ", ".join(sorted({g.role for g in self.graphs}))
        raise BundleError(f"The bundle {self.name!r} has no graph with the role {role!r}; it has: {have}.")

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over all weights, scales, zero points, embeddings and head included."""
        return 8 * sum(g.bytes for g in self.groups) / sum(g.parameters for g in self.groups)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that layers keep of one text."""
        return sum(state.nbytes for state in self.states)

    def to_json(self) -> str:
        """The text of `edge.json`."""
        fields = dataclasses.asdict(self)
        for name in [
            name for name in ("embedding", "states", "external") if not fields[name]
        ]:  # which most models have no use for
            del fields[name]
        return sealed(fields)


def sealed(fields: dict[str, Any]) -> str:
    """A manifest's JSON text, whose last field is a checksum of all before it."""
    text = json.dumps({name: value for name, value in fields.items() if name != CHECKSUM}, indent=1, ensure_ascii=False)
    before = text.removesuffix("\n}") + ",\n "
    return f'{before}"{CHECKSUM}": "{_checksum(before)}"\n}}\n'


def parse(text: str, where: str) -> Manifest:
    """A manifest from its JSON text; BundleError, in which `where` names the file, if it is not JSON, was changed, has
    another format version or a wrong or missing field. Unknown fields are ignored: a later producer may add some."""
    raw = read_json(text, where)
    before, found, after = text.rpartition(f'"{CHECKSUM}"')
    if found and _checksum(before) not in after:
        raise BundleError(f"{where} is damaged: its checksum differs; export or copy the bundle again.")
    version = raw.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise BundleError(f"{where} has no format_version; it is not a manifest of this project.")
    if version != FORMAT_VERSION:
        advice = "upgrade edge" if version > FORMAT_VERSION else "export the model again"
        raise BundleError(f"{where} has format version {version}, and this edge reads {FORMAT_VERSION}; {advice}.")
    manifest = typed(raw, Manifest, where)
    check(manifest, where)
    return manifest


def check(manifest: Manifest, where: str, error: type[EdgeError] = BundleError) -> None:
    """Raise `error` if a manifest has values that no export writes."""
    for fault in faults(manifest):
        raise error(f"{where} cannot be used: {fault}; export the model again.")


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
