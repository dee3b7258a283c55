"""Model configurations, made uniform by transformers, and what tensors they call for."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.config_fields import refuse_unknown_fields
from edge.export.checkpoint.tensor_names import VISION
from edge.export.facts.experts import check_experts

if TYPE_CHECKING:
    import torch

# Sizes without which there is no model, as the families' configurations name them.
_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    *("num_layers", "num_decoder_layers", "num_heads", "d_model", "d_ff", "d_kv"),
    *(f"{half}_{size}" for half in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")),
)

_EXPERTS = "num_experts", "num_local_experts"  # their number, as families call it
_PARTS = "text_config", "encoder", "decoder"  # of a configuration
MAX_POSITIONS = 1 << 24  # that a configuration may state: the longest contexts of today are 10 million tokens


def complete(raw: dict[str, Any], where: str, tensors: Iterable[str]) -> dict[str, Any]:
    """The text model's whole configuration, defaults filled in, from what a config.json holds.

    tensors: the names of the checkpoint's: a configuration of more layers is refused before anything is made of it.

    A multimodal configuration gives its text part; an encoder-decoder's stays whole. A model type that transformers
    does not know is returned as it is: the graph builder refuses it by name. No code from the checkpoint is run.

    Raises:
        CheckpointError: no model type, more layers than the tensors', or values that transformers does not accept.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    from edge.export.graph.families import FAMILIES

    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{where} names no model_type, so the model's family is unknown.")
    if model_type not in CONFIG_MAPPING:
        return raw
    _check_sizes(raw, where, tensors)
    raw = _without(raw)
    with _quiet_transformers():
        try:
            whole = AutoConfig.for_model(**raw)
            # Of an encoder-decoder the text part would be the whole again, with the decoder's fields renamed.
            config = whole if whole.is_encoder_decoder else whole.get_text_config(decoder=True)
            complete_config: dict[str, Any] = config.to_dict()
        except Exception as e:  # validation there raises many types, all of them about these values
            raise CheckpointError(f"{where} holds values that {model_type} does not take: {on_one_line(e)}.") from None
    text = raw.get("text_config")
    stated = text if isinstance(text, Mapping) and config is not whole else raw
    if config.model_type in FAMILIES:
        _refuse_unknown_fields(stated, config, where)
        _check_experts(complete_config, where)
        return complete_config
    return common_fields(complete_config)


def _refuse_unknown_fields(stated: Mapping[str, Any], config: Any, where: str) -> None:
    """Check the fields of a configuration and of the text parts within it."""
    known = {field.name for field in fields(config)} | {*config.attribute_map, *config.attribute_map.values()}
    refuse_unknown_fields(stated, config.model_type, known, where)
    for name in _PARTS:
        part, within = stated.get(name), getattr(config, name, None)
        if isinstance(part, Mapping) and is_dataclass(within):
            _refuse_unknown_fields(part, within, where)


def _check_sizes(raw: Mapping[str, Any], where: str, tensors: Iterable[str]) -> None:
    """Raise CheckpointError if a layer count, a head count or a width is below one, if there are more positions than
    any model has, or more layers than tensors name."""
    layers = len({part for name in tensors for part in name.split(".") if part.isdecimal()})
    parts = list[Mapping[str, Any]]([raw])
    for part in parts:
        parts += [within for name in _PARTS if isinstance(within := part.get(name), Mapping)]
        for name in _SIZES:
            value = part.get(name)
            if isinstance(value, int) and value < 1:
                raise CheckpointError(f"{where} gives {name} as {value}, and no model has less than 1; fetch it again.")
            if name == "max_position_embeddings" and isinstance(value, int) and value > MAX_POSITIONS:
                raise CheckpointError(
                    f"{where} gives {name} as {value}, and no model has more than {MAX_POSITIONS:,}; fetch it again."
                )
            if isinstance(value, int) and name.endswith("layers") and value > layers:
                raise CheckpointError(
                    f"{where} gives {name} as {value}, and the weights are of {layers} layers; the two are not of the "
                    "same model, so fetch both again."
                )


def _check_experts(config: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError if no model has so many experts, or fewer than a token chooses, where the configuration
    calls that as most do."""
    chosen = config.get("num_experts_per_tok", 1) or 0
    for name in _EXPERTS:
        if isinstance(count := config.get(name), int) and count != 0:
            check_experts(where, count, chosen, config["num_hidden_layers"])


# The number of a classifier's labels, which transformers makes a name each for; and how weights were quantized, which
# is undone where they are read.
_LEFT_OUT = {"num_labels", "quantization_config", "compression_config"}


def _without(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what no graph depends on."""
    return {key: _read(value) for key, value in raw.items() if key not in _LEFT_OUT}


def _read(value: Any) -> Any:
    """A value of a configuration, in which transformers writes {"__float__": "Infinity"} for what JSON has not."""
    if isinstance(value, list):
        return [_read(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    stated = value.get("__float__")
    return float(stated) if len(value) == 1 and stated in ("Infinity", "-Infinity", "NaN") else _without(value)


# Sizes of a decoder, by the names that most configurations have for them.
COMMON = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
OTHER_NAMES = {  # where transformers' class says of none that it means the same
    "max_position_embeddings": ("n_positions", "max_seq_len", "n_ctx", "seq_length"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
}


def common_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of any type, with its sizes under their common names, too. Nothing is built of it."""
    from transformers import CONFIG_MAPPING

    kind = raw.get("model_type")
    called: dict[str, str] = CONFIG_MAPPING[kind].attribute_map if kind in CONFIG_MAPPING else {}
    found = dict(raw)
    for name in COMMON:
        others = (called.get(name, name), *OTHER_NAMES.get(name, ()))
        value = next((raw[other] for other in (name, *others) if raw.get(other) is not None), None)
        if not isinstance(value, int):  # there is none, or one for each layer
            continue
        if not 0 < value <= MAX_POSITIONS:
            raise CheckpointError(f"config.json gives {name} as {str(value)[:80]}, which is no size of a decoder.")
        found[name] = value
    return found


def is_traced(config: Mapping[str, Any]) -> bool:
    """True for the configuration of a decoder that is traced: see `traced_types`."""
    from edge.export.graph.families import FAMILIES, traced_types

    kind = config.get("model_type")
    if kind in FAMILIES or config.get("is_encoder_decoder"):  # which is known without transformers
        return False
    return kind in traced_types()


def generation_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the generation settings in an older config.json. `complete` omits them, as transformers 5 does."""
    from transformers import GenerationConfig

    return {key: raw[key] for key in vars(GenerationConfig()) if raw.get(key) is not None}


def skeleton(config: dict[str, Any], where: str) -> Any:
    """The transformers model that `config` describes, without values, or None where this project has no graph for the
    family: transformers loads it, or it is refused later, with the list of known ones.

    Raises:
        CheckpointError: transformers cannot build a model of these values.
    """
    import torch
    from transformers import AutoConfig

    from edge.export.graph.families import FAMILIES

    if config["model_type"] not in FAMILIES:
        return None
    try:
        with _quiet_transformers(), torch.device("meta"):
            return of_text(auto_class(config).from_config(AutoConfig.for_model(**config)))
    except Exception as e:  # building raises many types, all of them about these values
        reason = on_one_line(e)
        if isinstance(e, KeyError):  # of a registry: of activations, say
            reason = f"{reason} is not known there"
        kind = config["model_type"]
        raise CheckpointError(f"{where} holds values that no {kind} can be built of: {reason}.") from None


def of_text(model: Any) -> Any:
    """A model of transformers without the parts that see, which its text part does not run."""
    for module in list(model.modules()):
        for name in VISION:
            module._modules.pop(name, None)
    return model


def parameter_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def buffer_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors that are no parameters, and that checkpoints hold: a scalar of each layer, say."""
    stored, optional = model.state_dict().keys(), optional_tensors(model)
    return {n: tuple(b.shape) for n, b in model.named_buffers() if n in stored and n not in optional}


@dataclass(frozen=True)
class Made:
    """A tensor that transformers makes itself where a checkpoint does not hold it."""

    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]


def optional_tensors(model: Any) -> dict[str, Made]:
    """Return the tensors that a checkpoint may omit: sinusoidal positions, which are parameters of some models, and the
    zeros of a buffer that is added to the logits."""
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

    if embeds(config):
        return _Bare
    if not config.get("is_encoder_decoder"):
        return AutoModelForCausalLM
    speech = config["model_type"] in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    return AutoModelForSpeechSeq2Seq if speech else AutoModelForSeq2SeqLM


class _Bare:
    """Makes a model without the layers that a task adds: to BERT's, a pooling of its own that vectors do without."""

    @staticmethod
    def from_config(config: Any, **settings: Any) -> Any:
        """The model."""
        import inspect

        from transformers import MODEL_MAPPING

        found = MODEL_MAPPING[type(config)]
        pools = "add_pooling_layer" in inspect.signature(found.__init__).parameters
        return found._from_config(config, **settings, **({"add_pooling_layer": False} if pools else {}))


def embeds(config: Mapping[str, Any]) -> bool:
    """True if models of this type make vectors of texts, and nothing else."""
    from edge.export.graph.families import FAMILIES

    kind = str(config.get("model_type"))
    return kind in FAMILIES and bool(FAMILIES[kind].traits.get("embeds"))


def usual_prompts(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The prompts that the family's makers name for people alone, by name."""
    from edge.export.graph.families import FAMILIES, find_family

    kind = str(config.get("model_type"))
    return find_family(kind)[1].prompts if kind in FAMILIES else {}


def check_tensors(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Compare a checkpoint's tensors with what its configuration calls for; `check_leftovers` looks at the others.

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


def check_leftovers(model: Any, names: Iterable[str], where: str) -> None:
    """Refuse tensors that belong to `model`'s own modules but have no place in them: layers beyond the last, and
    weights or biases that a module does without. Without them the export would be another model.

    Others are allowed: what transformers passes over too, and modules that `model` does not have (vision towers,
    heads for classes).

    Raises:
        CheckpointError: there are such tensors.
    """
    modules = dict(model.named_modules())
    places = {name for name, _ in model.named_parameters(remove_duplicate=False)} | dict(model.named_buffers()).keys()
    more_layers = getattr(model.config, "num_nextn_predict_layers", None) or 0  # they predict further tokens, unused

    def is_left_over(name: str) -> bool:
        if name in places:
            return False
        path = name.split(".")
        for at, part in enumerate(path):
            layers = modules.get(".".join(path[:at]))
            if part.isdecimal() and isinstance(layers, Sized) and int(part) >= len(layers):
                return int(part) >= len(layers) + more_layers
        owner = modules.get(".".join(path[:-1]))
        return path[-1] in ("weight", "bias") and owner is not None and any(True for _ in owner.parameters(False))

    prefix = f"{model.base_model_prefix}."
    names = not_ignored(model, names)
    known = [name if name.partition(".")[0] in model._modules else prefix + name for name in names]
    refuse_leftovers([name for name in known if is_left_over(name)], where)


def not_ignored(model: Any, names: Iterable[str]) -> list[str]:
    """The tensors that transformers does not pass over."""
    parts = [getattr(module, "_keys_to_ignore_on_load_unexpected", None) or () for module in model.modules()]
    ignored = [re.compile(pattern) for patterns in parts for pattern in patterns]
    return [name for name in names if not any(pattern.search(name) for pattern in ignored)]


def refuse_leftovers(leftovers: list[str], where: str) -> None:
    """Raise CheckpointError if there are tensors that the configuration has no use for."""
    if leftovers:
        more = f" and {len(leftovers) - 1} more" if len(leftovers) > 1 else ""
        raise CheckpointError(
            f"{where} holds the tensor {leftovers[0]!r}{more}, for which its configuration has no place; the two are "
            "not of the same model, so fetch both again."
        )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers. Its advice about configurations is for training and would hide this command's output."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
