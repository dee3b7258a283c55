"""The inputs and outputs of a decoder's graph that another program wrote, under the names that are in use: Optimum's
and transformers.js', those of onnxruntime-genai's builder, and those of transformers' own exporter."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from edge.errors import ExportError
from edge.manifest import KVLayer, KVLayout

SHOWN = 80  # characters of a name in a sentence
IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
BRANCH, KEPT_LOGITS = "use_cache_branch", "num_logits_to_keep"
FED = (IDS, MASK, POSITIONS, BRANCH, KEPT_LOGITS)
LOGITS = "logits"
RANKS = {IDS: (2,), MASK: (2,), POSITIONS: (2,), BRANCH: (0, 1), KEPT_LOGITS: (0, 1)}
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
TYPES = {
    IDS: INTEGERS,
    POSITIONS: INTEGERS,
    KEPT_LOGITS: INTEGERS,
    MASK: (*INTEGERS, ir.DataType.BOOL, ir.DataType.FLOAT),
    BRANCH: (ir.DataType.BOOL,),
}
# The past and the present keys and values of a layer.
PATTERNS = (
    (r"past_key_values\.(\d+)\.(key|value)", r"present(?:_key_values)?\.(\d+)\.(key|value)"),
    (r"input\.past_key_values\.layers\.(\d+)\.(key|value)s", r"output\.past_key_values\.layers\.(\d+)\.(key|value)s"),
    (r"past_(key|value)s?_(\d+)", r"present_(key|value)s?_(\d+)"),
)
LIKE_PAST = ("past", "cache", "state", "conv")  # begin or are part of the names of what is kept of a text


@dataclass(frozen=True)
class Kept:
    """Keys or values of a layer, as a graph takes them, [1, heads, P, head_dim], and gives them, with S new rows."""

    layer: int
    part: str  # key or value
    past: ir.Value
    present: ir.Value

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.part}"

    @property
    def sizes(self) -> tuple[int, int]:
        """Heads and channels of a head."""
        heads, dim = (_size(self.past, i) for i in (1, 3))
        assert heads is not None and dim is not None, "which `read_signature` has checked"
        return heads, dim


@dataclass(frozen=True)
class Signature:
    """What a graph takes and gives. inputs: those of `FED` that it has. kept: of all layers, keys before values.
    vocab: tokens."""

    inputs: dict[str, ir.Value]
    kept: list[Kept]
    logits: ir.Value
    vocab: int

    @property
    def kv(self) -> KVLayout:
        return KVLayout("float32", [KVLayer(*kept.sizes) for kept in self.kept if kept.part == "key"])


def read_signature(graph: ir.Graph, where: Path | str, vocab: int | None = None) -> Signature:
    """Find what a decoder's graph takes and gives. vocab: the tokens that the configuration states, for a graph that
    does not say.

    Raises:
        ExportError: it is no decoder that keeps keys and values, or one whose inputs nobody feeds here.
    """

    def refuse(why: str) -> ExportError:
        return ExportError(f"{where} cannot be made a bundle: {why}.")

    inputs = {str(value.name): value for value in graph.inputs}
    outputs = {str(value.name): value for value in graph.outputs}
    if any("encoder" in name for name in inputs):
        raise refuse("it is half of an encoder-decoder, and ready ONNX models are read of decoders alone; export the "
                     "Torch checkpoint")  # fmt: skip
    if "inputs_embeds" in inputs and IDS not in inputs:
        raise refuse("it reads embeddings instead of tokens (inputs_embeds), which another graph makes")
    kept = _kept(inputs, outputs, refuse)
    rest = inputs.keys() - {value.past.name for value in kept}
    if not kept:
        like = sorted(name for name in rest if name.startswith(LIKE_PAST))
        raise refuse(
            f"it has no inputs past_key_values.N.key and .value{f', but {like[0][:SHOWN]!r}' if like else ''}, and so "
            "keeps nothing of a text; export it with its cache (optimum-cli: --task text-generation-with-past)"
        )
    if strange := sorted(rest - {*FED}):
        states = [name for name in strange if any(word in name for word in LIKE_PAST)]
        why = "which is a state of a layer without keys, and those are read of known families alone"
        raise refuse(f"it wants the input {strange[0][:SHOWN]!r}, {why if states else 'which nobody feeds here'}")
    if IDS not in inputs:
        raise refuse(f"it has no input {IDS}")
    found = {name: inputs[name] for name in FED if name in inputs}
    for name, value in found.items():
        if value.shape is None or len(value.shape) not in RANKS[name]:
            raise refuse(f"its input {name} has the shape {_shown(value)}, and {RANKS[name][-1]} sizes are fed")
        if value.dtype not in TYPES[name]:
            raise refuse(f"its input {name} is of the type {value.dtype}")
    logits = outputs.get(LOGITS)
    if logits is None:
        raise refuse(f"it has no output {LOGITS}")
    if logits.shape is not None and len(logits.shape) != 3:
        raise refuse(f"its logits have the shape {_shown(logits)}, and there are 3 sizes of a decoder's")
    tokens = _size(logits, 2) or vocab
    if not tokens:
        raise refuse("neither its logits nor config.json say how many tokens there are")
    return Signature(found, kept, logits, tokens)


Refuse = Callable[[str], ExportError]


def _kept(inputs: dict[str, ir.Value], outputs: dict[str, ir.Value], refuse: Refuse) -> list[Kept]:
    pasts, presents = dict[tuple[int, str], ir.Value](), dict[tuple[int, str], ir.Value]()
    for past, present in PATTERNS:
        pasts |= {place: value for name, value in inputs.items() if (place := _place(past, name)) is not None}
        presents |= {place: value for name, value in outputs.items() if (place := _place(present, name)) is not None}
    layers = sorted({layer for layer, _ in pasts})
    if layers != list(range(len(layers))):
        raise refuse(
            f"it keeps keys and values of the layers {str(layers)[:SHOWN]} alone, and those without are read of known "
            "families alone"
        )
    kept = list[Kept]()
    for layer in layers:
        for part in ("key", "value"):
            taken, given = pasts.get((layer, part)), presents.get((layer, part))
            if taken is None or given is None:
                raise refuse(f"it has no past and present {part} of the layer {layer}")
            kept.append(Kept(layer, part, taken, given))
            _check_kept(kept[-1], refuse)
        if kept[-1].sizes != kept[-2].sizes:
            raise refuse(f"the key and the value of its layer {layer} have other sizes")
    return kept


def _place(pattern: str, name: str) -> tuple[int, str] | None:
    """The layer and the part that a name is of."""
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    number = next(each for each in found.groups() if each.isdecimal())
    part = next(each for each in found.groups() if not each.isdecimal())
    return (int(number), part) if len(number) < 6 else None


def _check_kept(kept: Kept, refuse: Refuse) -> None:
    shape, name = kept.past.shape, str(kept.past.name)[:SHOWN]
    sizes = [_size(kept.past, i) for i in range(4)] if shape is not None and len(shape) == 4 else [None] * 4
    if not (sizes[1] and sizes[3]) or sizes[2] is not None:
        raise refuse(
            f"its input {name!r} has the shape {_shown(kept.past)}, and keys and values are of four sizes: 1, heads, "
            "tokens, channels"
        )
    if kept.past.dtype != ir.DataType.FLOAT or kept.present.dtype not in (None, ir.DataType.FLOAT):
        raise refuse(
            f"its input {name!r} is of the type {kept.past.dtype}, and keys and values are kept in float32 on a CPU; "
            "take the file in float32, or one whose name ends with q4 or quantized"
        )


def _size(value: ir.Value, place: int) -> int | None:
    """A size of a value that is fixed; None of one that is not. What torch traces calls the number 4 '4'."""
    size = None if value.shape is None else value.shape[place]
    if isinstance(size, ir.SymbolicDim):
        size = int(size.value) if size.value is not None and size.value.isdecimal() else None
    return size


def _shown(value: ir.Value) -> str:
    return str(value.shape)[:SHOWN]
