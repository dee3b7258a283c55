"""Torch checkpoint -> bundle. May import torch, transformers, onnx and onnxscript; this file alone does not.

`edge.export` is this package and also the function that does its work: ``edge.export("model/", "model.edge")`` calls
`export` below. Importing any part of a package sets the package as an attribute of its parent, so that a plain
function of the same name in `edge` would vanish with the first such import; the package itself is callable instead.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edge import catalog
from edge.bundle import GOLDEN, TOKENIZER, Bundle, BundleWriter
from edge.errors import EdgeError, InputError, MissingExtraError
from edge.export import quantize as methods
from edge.export.quantize.base import Progress, QTensor, Weight
from edge.export.tokenizer import compact
from edge.manifest import FORMAT_VERSION, Manifest, Source
from edge.runtime.engine import Engine
from edge.runtime.memory import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

LEAST_CONTEXT = 16
MOST_CONTEXT = 8192  # of the default: rope tables and verification cost memory for every position; more must be asked
FLOATS = {"F32", "F16", "BF16"}  # of stored types
KEPT = {"gguf", "Q4_0", "Q8_0", "float"}  # methods after which a tensor has the values that it was stored with

# Answered at export and recorded in golden.json: prose, arithmetic, code, another language.
GOLDEN_PROMPTS = [
    "Why does the moon change its shape in the sky?",
    "A train leaves at 9:40 and arrives at 11:05. How long does it take?",
    "Write a Python function that returns the largest of three numbers.",
    "Traduis en français : the library opens at ten o'clock.",
]
GOLDEN_TOKENS = 24


def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    weights: str | None = None,
    block_size: int | None = None,
    max_context: int | None = None,
    calibration: str | None = None,
    check: bool = True,
    force: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Bundle:
    """Turn a checkpoint into a bundle.

    Args:
        source: a model directory, a .gguf file, a catalog name or a hub id.
        out: the bundle to write; default: NAME.edge in the current folder.
        weights: fp32, fp16, int8, int4, or keep (a GGUF's own precision); default: the catalog's, else int4.
        block_size: weights that share one scale; default: the catalog's, else the method's own.
        max_context: most tokens the bundle can take; default: the catalog's, else the model's, up to 8,192.
        calibration: a text that calibrated methods run the model on; default: a built-in one.
        check: compare the written graphs with Torch, and write the figures into the manifest's `quality`.
        force: replace a bundle that stands at `out`.
        name: the model's name in the manifest; default: the checkpoint's.
        progress: told how far each stage is; a total of 0 is one that is not known.
        say: told in sentences what is done to the model.

    Returns:
        The bundle, written whole; where anything fails, nothing is left at `out`.

    Raises:
        EdgeError: one of its subclasses, with a sentence that says what is wrong.
    """
    tell, advance = say or _silent, progress or _silent
    if weights is not None and weights not in methods.METHODS:
        raise InputError(f"There are no weights {weights!r}; choose one of {', '.join(methods.METHODS)}.")
    try:
        import torch  # noqa: F401, first: a missing one is told from a broken checkpoint

        from edge.export import check as checks
        from edge.export.checkpoint import open_checkpoint
        from edge.export.graph import build_decoder
        from edge.export.graph.families import find_family
    except ModuleNotFoundError as e:
        raise MissingExtraError(f"Exporting needs {e.name}; install it with: pip install \"edge[export]\"") from None

    advance(0, 0, "opening the checkpoint")
    checkpoint = open_checkpoint(str(source), progress=progress, say=say)
    entry = catalog.find(checkpoint.name) if checkpoint.kind == "catalog" else None
    defaults = {} if entry is None else entry.export
    weights = weights or str(defaults.get("weights", "int4"))
    block_size = defaults.get("block_size") if block_size is None else block_size
    max_context = defaults.get("max_context") if max_context is None else max_context
    family, _ = find_family(str(checkpoint.config.get("model_type")))
    context = _context(checkpoint, max_context)
    name = name or Path(checkpoint.name).name  # a hub id's owner is no part of the name
    _describe(checkpoint, family, weights, tell)
    with BundleWriter(Path(f"{name}.edge") if out is None else out, force=force) as writer:
        quantized = methods.quantize(
            checkpoint, weights, block_size=block_size, calibration=calibration, progress=progress
        )
        gc.collect()  # a calibrated method's Torch model, whose modules point at each other, before the next one
        release_freed()
        recorded = checks.reference(checkpoint, context, advance) if check else None
        watched = _Watched(quantized, advance, "writing weights")
        graph = build_decoder(checkpoint, watched, writer, context)
        _say_what_changed(checkpoint, watched.methods, tell)
        del quantized, watched
        writer.write_file(TOKENIZER, compact(checkpoint.tokenizer.json))
        writer.flush()
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            producer=f"edge {version('edge')}",
            name=name,
            family=graph.family,
            kind="decoder",
            weights=weights,
            dims=graph.dims,
            context=context,
            graphs=graph.graphs,
            kv=graph.kv,
            groups=graph.groups,
            tokens=checkpoint.tokenizer.tokens,
            chat_template=checkpoint.tokenizer.chat_template,
            source=Source(checkpoint.name, checkpoint.kind, checkpoint.licence),
        )
        staged = Bundle(writer.staging, manifest)
        engine = Engine(staged, context=context)
        if recorded is not None:
            advance(0, 0, "checking against Torch")
            found = checks.check(engine, recorded)
            checks.refuse_if_broken(found, manifest)
            manifest = dataclasses.replace(manifest, quality=checks.quality(found))
        advance(0, 0, "recording golden answers")
        writer.write_file(GOLDEN, json.dumps(_golden(engine, staged, tell), indent=1) + "\n")
        del engine
        advance(0, 0, "hashing the bundle")
        return writer.commit(manifest)


def _context(checkpoint: Checkpoint, asked: int | None) -> int:
    """The bundle's context: what is asked for, within the model's; default: the model's, up to MOST_CONTEXT."""
    most = int(checkpoint.config.get("max_position_embeddings") or MOST_CONTEXT)
    if asked is None:
        return min(most, MOST_CONTEXT)
    if asked < LEAST_CONTEXT:
        raise InputError(f"A context of {asked} tokens is too small; choose --max-context {LEAST_CONTEXT} or more.")
    if asked > most:
        raise InputError(
            f"A context of {asked} tokens is more than the {most} that {checkpoint.name} was made for; choose "
            f"--max-context {most} or less."
        )
    return asked


def _describe(checkpoint: Checkpoint, family: str, weights: str, tell: Callable[[str], None]) -> None:
    count = sum(math.prod(checkpoint.shape(n)) for n in checkpoint.names())
    licence = checkpoint.licence or "no licence stated"
    tell(f"{checkpoint.name} ({checkpoint.kind}, {licence}): family {family}, {count:,} weights, to {weights}.")


def _say_what_changed(checkpoint: Checkpoint, methods: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Say which tensors that were stored in blocks did not keep the blocks they had. `methods`: by tensor name."""
    stored = Counter(
        kind
        for name, method in methods.items()
        if (kind := checkpoint.stored_type(name)) not in FLOATS and method not in KEPT
    )
    for kind, count in sorted(stored.items()):
        tensors = "1 tensor of type {} is" if count == 1 else f"{count} tensors of type {{}} are"
        tell(f"{tensors.format(kind)} dequantized and quantized anew.")


def _golden(engine: Engine, bundle: Bundle, tell: Callable[[str], None]) -> dict[str, Any]:
    """Recorded answers to GOLDEN_PROMPTS, in the model's chat format where it has one that can be rendered."""
    from edge.runtime.model import Model
    from edge.runtime.text import Text
    from edge.runtime.verify import record_golden

    model = Model(bundle, engine, Text(bundle))
    try:
        prompts = [model.prompt_ids(prompt) for prompt in GOLDEN_PROMPTS]
    except EdgeError as e:
        tell(f"{e} The golden answers are recorded without it.")
        prompts = [model.prompt_ids(prompt, raw=True) for prompt in GOLDEN_PROMPTS]
    tokens = min(GOLDEN_TOKENS, engine.context // 2)
    room = engine.context - tokens - 1
    return record_golden(engine, [ids[:room] for ids in prompts], tokens)


class _Watched(Mapping[str, Weight]):
    """Weights that tell how many of them the graph has taken."""

    def __init__(self, weights: Mapping[str, Weight], progress: Progress, text: str) -> None:
        self._weights, self._progress, self._text = weights, progress, text
        self.methods: dict[str, str] = {}  # of the weights taken

    def __getitem__(self, name: str) -> Weight:
        self._progress(len(self.methods), len(self._weights), self._text)
        weight = self._weights[name]
        self.methods[name] = weight.method if isinstance(weight, QTensor) else "float"
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _silent(*args: Any) -> None:
    pass


class _CallablePackage(ModuleType):
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _CallablePackage
