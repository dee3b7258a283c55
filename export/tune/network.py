"""The model that is trained: the checkpoint's weights, frozen, with LoRA adapters and gated layers."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from edge.errors import ExportError, InputError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.experts import OF_EXPERT
from edge.export.facts.progress import Progress
from edge.export.graph.families import find_family, is_like_llama
from edge.export.quantize.bfloat16 import fast_dtype
from edge.export.reference.in_torch import load_torch
from edge.export.tune.data import Batch
from edge.export.tune.gates import Gate, Gates, Watch

BRANCHES = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"),
    *("c_fc", "c_proj"),
)


class Network:
    """A decoder whose answers can be predicted with layers left out, and with all of them.

    rank: of the adapters (Hu et al. 2021, LoRA) on all projections of attention and feed-forward, scaled by 2.
    bf16: products in bfloat16; the residual stream, norms, adapters and their optimizer stay float32.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, rank: int, seed: int, device: str, bf16: bool, progress: Progress | None = None
    ) -> None:
        from peft import LoraConfig, get_peft_model

        if not is_like_llama(str(checkpoint.config.get("model_type"))):
            raise ExportError(
                f"Layers of {checkpoint.name} depend on each other by more than what they hand on, so that none can be "
                "left out, and nothing is trained for it."
            )
        if any(map(OF_EXPERT.fullmatch, checkpoint.names())):
            raise ExportError(f"Layers of {checkpoint.name} have experts, for which nothing is trained here.")
        model = load_torch(checkpoint, progress=progress)
        model.requires_grad_(False)
        if bf16:
            for name, module in model.named_modules():
                if name.rpartition(".")[2] in BRANCHES:
                    module.to(torch.bfloat16)  # autocast would cast frozen weights anew in every step
        self.layers = len(model.get_decoder().layers)
        self.hidden_size = int(model.config.hidden_size)
        self._gates = Gates(model)
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        _, family = find_family(model.config.model_type)
        self._head_scale = 1.0 if family.layers is None else family.layers(model.config).head_scale
        torch.manual_seed(seed)  # of the adapters' first values
        targets = sorted({name.rpartition(".")[2] for name, _ in model.named_modules()} & set(BRANCHES))
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, lora_dropout=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers' about what peft asks it
            self._peft = get_peft_model(model, config).to(device).eval()
        self.device, self._bf16 = torch.device(device), bf16
        self.adapters = {name: p for name, p in self._peft.named_parameters() if p.requires_grad}

    def tensors(self, batch: Batch) -> Tensors:
        return Tensors(batch, self.device)

    def watch(self, tensors: Tensors, watch: Watch) -> None:
        """Run the prompts through everything, without gradients, and let `watch` see the feed-forward blocks."""
        self._gates.watch = watch
        try:
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
                self._decoder(input_ids=tensors.tokens[:, : int(tensors.prompts.max())], use_cache=False)
        finally:
            self._gates.watch = None

    def logits(
        self, tensors: Tensors, gate: Gate | None, *, adapted: bool = True, feed_forward: bool = False
    ) -> torch.Tensor:
        """Return the logits [N, V] float32 of the answers' tokens, one sequence after another; `gate` says what is left
        out.

        adapted: with the adapters; without them and gates it is the model that is tuned. feed_forward: the gates are
        those of feed-forward blocks, not of layers.
        """
        bare: AbstractContextManager[Any] = nullcontext() if adapted else self._peft.disable_adapter()
        self._gates.gate, self._gates.feed_forward = gate, feed_forward
        try:
            with bare, torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
                stream = self._decoder(input_ids=tensors.tokens, use_cache=False).last_hidden_state
                return self._head(stream[tensors.answer] * self._head_scale).float()
        finally:
            self._gates.gate, self._gates.feed_forward = None, False

    def deltas(self) -> dict[str, NDArray[np.float32]]:
        """Return the product of the adapters that is added to each weight [out, in], by transformers' name of the
        weight."""
        found = {}
        for name, module in self._peft.base_model.model.named_modules():
            if hasattr(module, "get_delta_weight"):
                with torch.no_grad():
                    found[f"{name}.weight"] = module.get_delta_weight("default").float().cpu().numpy()
        return found


class Tensors:
    """A batch on the device: tokens [B, S], and masks [B, S] of prompts', of answers', and of given texts' tokens."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        place = torch.arange(batch.tokens.shape[1])
        prompts, lengths = torch.from_numpy(batch.prompts)[:, None], torch.from_numpy(batch.lengths)[:, None]
        self.tokens = torch.from_numpy(batch.tokens).to(device)
        self.prompts = batch.prompts
        self.prompt = (place < prompts).to(device)
        self.answer = ((place >= prompts) & (place < lengths)).to(device)
        given = np.ones(len(batch.tokens), bool) if batch.given is None else batch.given
        self.given = torch.from_numpy(given)[:, None].to(device).expand_as(self.tokens)


def divergence(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """The mean KL divergence of predictions [N, V] from a teacher's, in nats a token."""
    return F.kl_div(F.log_softmax(student, -1), F.log_softmax(teacher, -1), reduction="batchmean", log_target=True)


def likelihood(tensors: Tensors, student: torch.Tensor, *, given: bool = False) -> torch.Tensor:
    """The mean negative log likelihood of the answers' next tokens, in nats; the last one of each has none.

    given: of texts from outside alone, as a share of all; 0 where there are none.
    """
    answer = tensors.answer
    following = torch.cat([tensors.tokens[:, 1:], tensors.tokens[:, :1]], dim=1)[answer]
    counts = torch.cat([answer[:, 1:], torch.zeros_like(answer[:, :1])], dim=1)[answer]
    read = counts & tensors.given[answer] if given else counts
    return F.cross_entropy(student[read], following[read], reduction="sum") / counts.sum()


def pick_device(asked: str | None) -> str:
    """The device to train on: what is asked for, else CUDA where there is one.

    Raises:
        InputError: it is none that Torch has here.
    """
    if asked is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked not in ("cpu", "cuda") or (asked == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"There is no device {asked!r} to train on here; choose cpu, or cuda where Torch finds one.")
    return asked


def fast_bf16(device: str) -> bool:
    """True if products in bfloat16 are faster than in float32 on the device."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return fast_dtype() == torch.bfloat16
