"""The checkpoint as a Torch model in float32: what an export is checked against, and what calibration runs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.facts.experts import STACKED, WHOLE, expert_name, member_of
from edge.export.facts.progress import Progress
from edge.export.graph.families import experts_of, fused_rows, parameter_names
from edge.runtime.check.perplexity import LogitsSource, pieces

if TYPE_CHECKING:
    import torch

    from edge.export.facts.checkpoint import Checkpoint


def load_torch(checkpoint: Checkpoint, threads: int | None = None, progress: Progress | None = None) -> Any:
    """The transformers model of `checkpoint`, float32, in eval mode. Memory: one float32 copy and one tensor.

    Built from the configuration and `Checkpoint.read`, the same way for every kind of source, so that the reference
    sees the values that the exporter sees. `threads`: Torch's, for the whole process; default: as they are.

    Raises:
        CheckpointError: the tensors are not those of the model that the configuration describes.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    model = build_torch(checkpoint)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for done, (name, parameter) in enumerate(parameters.items()):
            if progress is not None:
                progress(done, len(parameters), "loading the Torch model")
            parameter.copy_(read_torch(checkpoint, name, tuple(parameter.shape)))
        load_buffers(model, checkpoint)
    return model


def load_buffers(model: Any, checkpoint: Checkpoint) -> None:
    """Read the tensors of a checkpoint that are no parameters: what is added to the logits, or a scalar of each
    layer."""
    import torch

    for name in model.state_dict().keys() & dict(model.named_buffers()).keys():
        model.get_buffer(name).copy_(torch.from_numpy(checkpoint.read(name)))


def build_torch(checkpoint: Checkpoint) -> Any:
    """The transformers model that `checkpoint` is of, float32, in eval mode, without its values, and so without memory.

    Raises:
        CheckpointError: the tensors are not those of the model that the configuration describes.
    """
    import torch
    from transformers import AutoConfig
    from transformers.initialization import no_init_weights

    from edge.export.checkpoint.model_config import auto_class, of_text

    config = AutoConfig.for_model(**checkpoint.config)
    # Which says of recurrent layers that something else would be faster.
    logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
    with no_init_weights():  # untouched pages cost no memory until they are filled
        model = of_text(auto_class(checkpoint.config).from_config(config, dtype=torch.float32))
    model.tie_weights()
    head = model.get_output_embeddings()
    if checkpoint.config.get("tie_word_embeddings") is False and head is not None:
        # T5's and umT5's classes tie it whatever the files hold, and umT5 scales what a tied one reads.
        head.weight = torch.nn.Parameter(torch.empty_like(head.weight))
        model.config.tie_word_embeddings = False
    parameters = dict(model.named_parameters())  # tied ones once
    have = {*parameter_names(checkpoint.config, checkpoint.names()).values()} - dict(model.named_buffers()).keys()
    for name in sorted(have ^ parameters.keys()):
        if name in have:
            raise CheckpointError(
                f"{checkpoint.name} holds the tensor {name}, which transformers' {config.model_type} does not have; "
                "its config.json describes another model."
            )
        raise CheckpointError(f"{checkpoint.name} lacks the tensor {name}; get the checkpoint again.")
    return model.eval()


def read_torch(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the checkpoint, which may be a part of a mapped file: to be read, not to be written.

    Raises:
        CheckpointError: it has another shape.
    """
    import torch

    fused = fused_rows(checkpoint.config)
    end = next((end for end in fused if name.endswith(f".{end}")), None)
    if WHOLE.fullmatch(name):
        values = _of_experts(checkpoint, name, shape)
    elif end is not None:
        values = np.empty(shape, np.float32)
        for member, places in fused[end].items():
            values[places] = checkpoint.read(name.removesuffix(end) + member)
    else:
        values = checkpoint.read(name)
    if values.shape != shape:
        raise CheckpointError(
            f"{checkpoint.name} holds {name} with shape {list(values.shape)}, and its configuration asks for "
            f"{list(shape)}."
        )
    return torch.from_numpy(values if values.flags.writeable else values.copy())  # torch warns of read-only arrays


def _of_experts(checkpoint: Checkpoint, parameter: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A parameter that is made of the matrices of all experts."""
    match, experts = WHOLE.fullmatch(parameter), experts_of(checkpoint.config)
    assert match is not None and experts is not None
    block, members, part = match[1], STACKED[match[2]], "bias" if match[3] else "weight"
    values = np.empty(shape, np.float32)
    for i, of_expert in enumerate(values):
        for place, member in enumerate(members):
            rows = member_of(of_expert, place, len(members), turned=experts.turned)
            rows[...] = checkpoint.read(expert_name(block, i, member, part))
    return values


class TorchLogits:
    """The logits of a Torch model, measured as a bundle's are: piece by piece, on its own KV cache."""

    def __init__(self, model: Any) -> None:
        self.vocab_size = int(model.config.vocab_size)
        self._model = model

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        import torch

        past = None
        for piece in pieces(tokens):
            with torch.no_grad():
                out = self._model(torch.from_numpy(piece)[None], past_key_values=past, use_cache=True)
            past = out.past_key_values
            yield out.logits[0].numpy()


class RecordedLogits:
    """Logits of texts, taken once and kept in a file, so that the model they came from can be freed, and they
    (200 kB a token with a large vocabulary) take no memory while the bundle is made.

    path: of the file; another process may then take what was recorded over, by pickle. None: a temporary one.

    Raises:
        OSError: there is no room for the file.
    """

    def __init__(self, source: LogitsSource, texts: list[NDArray[np.int64]], path: Path | None = None) -> None:
        self.texts = texts
        self.vocab_size = source.vocab_size
        self._path = path
        self._file: IO[bytes] = tempfile.TemporaryFile() if path is None else path.open("w+b")  # noqa: SIM115
        self._starts: dict[bytes, int] = {}
        for tokens in texts:
            self._starts[tokens.tobytes()] = self._file.tell()
            for piece in source.logits(tokens):
                self._file.write(np.ascontiguousarray(piece, np.float32).data)
        self._file.flush()

    def up_to(self, tokens: int) -> RecordedLogits:
        """Return the logits of the first `tokens` tokens of each text, from the same file."""
        made = RecordedLogits.__new__(RecordedLogits)  # not a copy, which the file would not be part of
        made.__dict__ |= self.__dict__
        made.texts = [text[:tokens] for text in self.texts]
        pairs = zip(made.texts, self.texts, strict=True)
        made._starts = {short.tobytes(): self._starts[text.tobytes()] for short, text in pairs}
        return made

    def close(self) -> None:
        """Close the file; one with a path may then be removed."""
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        assert self._path is not None
        return {name: value for name, value in self.__dict__.items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._file = state["_path"].open("rb")

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        at = self._starts[tokens.tobytes()]
        for piece in pieces(tokens):  # mapped, so that they take no memory of this process
            shape = len(piece), self.vocab_size
            yield np.memmap(self._file, np.float32, "r", at, shape)
            at += 4 * len(piece) * self.vocab_size
