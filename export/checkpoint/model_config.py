"""Model configurations, made uniform by transformers, and what tensors they call for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.errors import CheckpointError, ExportError

if TYPE_CHECKING:
    import torch


def complete(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The text model's whole configuration, defaults filled in, from what a config.json holds.

    A multimodal configuration gives its text part; an encoder-decoder's stays whole. A model type that transformers
    does not know is returned as it is: the graph builder refuses it by name. No code from the checkpoint is run.

    Raises:
        CheckpointError: no model type, or values that transformers does not accept.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{where} names no model_type, so the model's family is unknown.")
    if "quantization_config" in raw:
        method = (raw["quantization_config"] or {}).get("quant_method", "an unnamed method")
        raise CheckpointError(f"{where} describes weights already quantized by {method}; export the unquantized model.")
    if model_type not in CONFIG_MAPPING:
        return raw
    with _quiet_transformers():
        try:
            whole = AutoConfig.for_model(**raw)
            # Of an encoder-decoder the text part would be the whole again, with the decoder's fields renamed.
            config = whole if whole.is_encoder_decoder else whole.get_text_config(decoder=True)
            complete_config: dict[str, Any] = config.to_dict()
        except Exception as e:  # validation there raises many types, all of them about these values
            reason = " ".join(str(e).split())
            raise CheckpointError(f"{where} holds values that {model_type} does not take: {reason[:300]}") from None
    return complete_config


def generation_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """What an older config.json says about generating; `complete` leaves it out, as transformers 5 does."""
    from transformers import GenerationConfig

    return {key: raw[key] for key in vars(GenerationConfig()) if raw.get(key) is not None}


def expected_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of all parameters of the transformers model that `config` describes, or None where this
    project has no graph for the family (it is refused later, with the list of known ones)."""
    model = skeleton(config)
    return None if model is None else parameter_shapes(model)


def skeleton(config: dict[str, Any]) -> Any:
    """The transformers model that `config` describes, without values, or None where there is no graph for it."""
    import torch
    from transformers import AutoConfig

    from edge.export.graph.families import find_family

    try:
        find_family(config["model_type"])
    except ExportError:
        return None
    with _quiet_transformers(), torch.device("meta"):
        return auto_class(config).from_config(AutoConfig.for_model(**config))


def parameter_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


@dataclass(frozen=True)
class Made:
    """A tensor that transformers makes itself where a checkpoint does not hold it."""

    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]


def optional_tensors(model: Any) -> dict[str, Made]:
    """What a checkpoint may leave out: sinusoidal positions, which are parameters of some models, and the zeros of a
    buffer that is added to the logits."""
    import torch

    made = {}
    for name, module in model.named_modules():
        if hasattr(module, "create_weight"):
            made[f"{name}.weight"] = Made(tuple(module.weight.shape), module.create_weight)
    for name, buffer in model.named_buffers():
        if name in (model._keys_to_ignore_on_load_missing or []):
            made[name] = Made(tuple(buffer.shape), partial(torch.zeros, buffer.shape))
    return made


def tied_names(model: Any) -> dict[str, str]:
    """The parameters that a model holds under several names: each other name -> the one in `parameter_shapes`."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (own := first.setdefault(id(parameter), name)) != name:
            tied[name] = own
    return tied


def auto_class(config: Mapping[str, Any]) -> Any:
    """The transformers class that makes the generating model of a configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    if not config.get("is_encoder_decoder"):
        return AutoModelForCausalLM
    speech = config["model_type"] in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    return AutoModelForSpeechSeq2Seq if speech else AutoModelForSeq2SeqLM


def check_tensors(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Compare a checkpoint's tensors with what its configuration calls for; extra tensors are allowed.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{where} lacks the tensor {missing[0]!r} of shape {list(expected[missing[0]])}{more}, which its "
            "configuration calls for."
        )
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise CheckpointError(
                f"{where}: the tensor {name!r} has shape {list(found[name])} where the configuration calls for "
                f"{list(shape)}."
            )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its advice about configurations is for training and would bury this command's own lines."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
