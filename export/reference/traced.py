"""A model that transformers knows and no family's file describes, as a graph that transformers' own exporter traces.

The exporter is experimental: it patches torch while it traces, and warns of other versions than it was tested with. So
whatever it makes is compared with Torch before a bundle is made of it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edge.errors import CheckpointError, ExportError, on_one_line

if TYPE_CHECKING:
    import onnx_ir as ir

    from edge.export.facts.checkpoint import Checkpoint

PAST, NEW = 3, 2  # tokens that are traced; neither may be 1, which a trace takes for a fixed size
FUSIONS = ("cpu", None)  # onnxruntime's own operators where they fit; some models can be traced without them alone
LOUD = ("transformers", "torch.onnx", "torch.export", "torch._export", "torch.fx", "onnxscript", "onnx_ir")


def load_whole(checkpoint: Checkpoint) -> Any:
    """The Torch model of a checkpoint by transformers alone, float32: it knows the names that tensors of older versions
    have. No code of the checkpoint is run.

    Raises:
        CheckpointError: the folder lacks tensors of the model, has others, or cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    assert checkpoint.path is not None, "a folder"
    try:
        with _quiet():
            model, found = AutoModelForCausalLM.from_pretrained(
                str(checkpoint.path), dtype=torch.float32, local_files_only=True, trust_remote_code=False,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as e:  # of any class: building a model of these values raises many
        raise CheckpointError(f"{checkpoint.name} cannot be loaded by transformers: {on_one_line(e)}.") from None
    for what, verb in (
        ("missing_keys", "lacks"),
        ("mismatched_keys", "has in another shape"),
        ("unexpected_keys", "has"),
    ):
        if names := sorted(map(str, found.get(what, ()))):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            place = ", for which its configuration has no place" if verb == "has" else ""
            raise CheckpointError(
                f"{checkpoint.name} {verb} the tensor {names[0][:200]!r}{more}{place}; fetch it again."
            )
    return model.eval()


def trace(model: Any) -> ir.Model:
    """The graph of a step of a Torch model: new tokens after a past of any length.

    Raises:
        ExportError: the model keeps something else than keys and values, or cannot be traced.
    """
    kind, why = model.config.model_type, ""
    for fusions in FUSIONS:
        try:
            with _quiet():
                return _traced(model, fusions)
        except ExportError:
            raise
        except Exception as e:  # of any class: tracing runs the model's own code
            why = why or on_one_line(e)
    raise ExportError(f"transformers' exporter cannot trace models of the type {kind!r}: {why}.")


def _traced(model: Any, fusions: str | None) -> ir.Model:
    import torch
    from transformers import DynamicCache
    from transformers.exporters import OnnxConfig, OnnxExporter

    ids = torch.zeros(1, PAST + NEW, dtype=torch.long)
    cache = DynamicCache()
    with torch.no_grad():
        made = model(ids[:, :PAST], past_key_values=cache, use_cache=True)
    if getattr(made, "past_key_values", None) is not cache or not _keeps_rows(cache, model.config):
        raise ExportError(
            f"Models of the type {model.config.model_type!r} keep something else of a text than the keys and values of "
            "each layer, and such models are exported of known families alone."
        )
    wanted = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {"input_ids": ids[:, PAST:], "past_key_values": cache}
    others = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(PAST, PAST + NEW)[None]}
    inputs |= {name: value for name, value in others.items() if name in wanted}
    exported = OnnxExporter().export(model, inputs, config=OnnxConfig(dynamic=True, ort_fusions=fusions))
    program: ir.Model = exported.program
    return program


def _keeps_rows(cache: Any, config: Any) -> bool:
    """True if a cache has keys and values of all tokens for each layer."""
    text = config.get_text_config()
    layers = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    shapes = [each.shape for pair in layers for each in pair if each is not None]
    right = all(len(shape) == 4 and shape[2] == PAST for shape in shapes)
    return right and len(shapes) == 2 * len(layers) == 2 * text.num_hidden_layers


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says of its own steps and versions."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    loggers = [logging.getLogger(name) for name in LOUD]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        enable_progress_bar()
