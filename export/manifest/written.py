"""Steps that the exports of decoders and of encoder-decoders share."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edge import __version__
from edge.bundle import GOLDEN, BundleWriter
from edge.export.facts.progress import Progress
from edge.export.facts.tensors import FLOATS, FloatTensor, RowsTensor, Weight
from edge.golden import Golden
from edge.golden_vectors import GoldenVectors
from edge.manifest import FORMAT_VERSION, Manifest, Source, Tokens
from edge.runtime.check.golden import GoldenInput, record_form, record_golden
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import PREFILL

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.graph.step import Built

GOLDEN_TOKENS = 24
EXACT = {"gguf", "Q4_0", "Q8_0", "float"}  # methods after which a tensor has the values that it was stored with


def manifest_of(
    checkpoint: Checkpoint, built: Built, name: str, kind: str, weights: str, context: int, **others: Any
) -> Manifest:
    """Return the manifest of a bundle whose graphs are written. others: fields that only its kind has."""
    return Manifest(
        format_version=FORMAT_VERSION,
        producer=f"edge {__version__}",
        name=name,
        kind=kind,
        weights=weights,
        context=context,
        tokens=known_tokens(checkpoint.tokenizer.tokens, built.dims.vocab_size),
        source=Source(checkpoint.name, checkpoint.kind, checkpoint.licence),
        **vars(built),
        **others,
    )


def known_tokens(tokens: Tokens, vocab: int) -> Tokens:
    """Return the tokens without those that were added to the tokenizer and not to the model, which never generates
    them."""
    bos = tokens.bos if tokens.bos is None or tokens.bos < vocab else None
    eos = [token for token in tokens.eos if token < vocab]
    return dataclasses.replace(tokens, bos=bos, eos=eos, add_bos=tokens.add_bos and bos is not None)


def say_what_changed(checkpoint: Checkpoint, written: RecordedWeights, tell: Callable[[str], None]) -> None:
    """Report the tensors whose stored blocks were dequantized and quantized anew, and their new bits."""
    changed = defaultdict[str, list[int]](list)
    for name, method in written.methods.items():
        if (kind := checkpoint.stored_type(name)) not in FLOATS and method not in EXACT and method != kind:
            changed[kind].append(written.bits[name])
    for kind, bits in sorted(changed.items()):
        tensors = "1 tensor of type {} is" if len(bits) == 1 else f"{len(bits)} tensors of type {{}} are"
        each = " or ".join(map(str, sorted(set(bits))))
        tell(f"{tensors.format(kind)} dequantized and quantized anew, in {each} bits.")


class RecordedWeights(Mapping[str, Weight]):
    """Weights that report progress, and record each method, as the graph reads them."""

    def __init__(self, weights: Mapping[str, Weight], progress: Progress, text: str) -> None:
        self._weights, self._progress, self._text = weights, progress, text
        self.methods: dict[str, str] = {}  # of the weights taken
        self.bits: dict[str, int] = {}

    def __getitem__(self, name: str) -> Weight:
        self._progress(len(self.methods), len(self._weights), self._text)
        weight = self._weights[name]
        self.methods[name] = "float" if isinstance(weight, FloatTensor) else weight.method
        if not isinstance(weight, FloatTensor):
            self.bits[name] = 8 if isinstance(weight, RowsTensor) else weight.bits
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def record(engine: Engine, inputs: Sequence[GoldenInput], tokens: int) -> Golden:
    """Golden answers, cut to what the engine's context holds, and what its int8 prefill graph says along them."""
    tokens = min(tokens, engine.context // 2)
    room = engine.context - tokens - 1
    golden = record_golden(engine, [dataclasses.replace(i, prompt_ids=i.prompt_ids[:room]) for i in inputs], tokens)
    if engine.prefill is None:
        return golden
    return dataclasses.replace(golden, forms=[record_form(engine, golden, PREFILL)])


def write_golden(writer: BundleWriter, golden: Golden | GoldenVectors) -> None:
    writer.write_file(GOLDEN, json.dumps(dataclasses.asdict(golden), indent=1) + "\n")
