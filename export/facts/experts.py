"""Experts: feed-forward blocks of which a router chooses a few for each token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edge.errors import CheckpointError, ExportError

# Of each expert, in its block; other names are turned into these where a checkpoint is read.
GATE, UP, DOWN = EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# In transformers' models the matrices of all experts are one parameter [experts, rows, columns], of these, and so are
# their biases [experts, rows].
STACKED = {"gate_up_proj": (GATE, UP), "down_proj": (DOWN,)}
WHOLE = re.compile(rf"(.+)\.experts\.({'|'.join(STACKED)})(_bias)?")
STACK = re.compile(rf"(.+)\.experts\.({'|'.join(EXPERT_PROJECTIONS)})\.(weight|bias)")  # see `stack_name`
OF_EXPERT = re.compile(rf"(.+)\.experts\.(\d+)\.({'|'.join(EXPERT_PROJECTIONS)})\.(weight|bias)")
MOST = 1 << 14  # experts of a layer, as our kernels take them
MOST_OF_ALL = 1 << 17  # those of all layers: Kimi K2 has 23,040, and the tensors of each have names


@dataclass(frozen=True)
class Clamped:
    """gpt-oss's activation: gate * sigmoid(alpha * gate) * (up + 1), of a gate up to `limit` and an up within it."""

    alpha: float
    limit: float


@dataclass(frozen=True)
class Experts:
    """The experts of a layer.

    count: of all of them; chosen: of a token's; wide: channels within one. router: the name of the matrix that scores
    them, in their block. sigmoids: scores are made weights one by one, instead of all together (softmax). normalized:
    the weights of a token's add up to one. bias: the name of what is added to the weights, in their block, where
    experts are chosen by the sum; None: nothing is. scale: multiplies what they give. biased: router and experts have
    biases. clamped: the activation, where it is not the configuration's. turned: transformers' parameters of all
    experts are [experts, columns, rows], with the rows of gate and up in turns.
    """

    count: int
    chosen: int
    wide: int
    router: str = "gate"
    sigmoids: bool = False
    normalized: bool = True
    bias: str | None = None
    scale: float = 1.0
    biased: bool = False
    clamped: Clamped | None = None
    turned: bool = False

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """The tensors of the block, by their names in it. hidden: the size of the residual stream."""
        found: dict[str, tuple[int, ...]] = {f"{self.router}.weight": (self.count, hidden)}
        if self.bias is not None:
            found[self.bias] = (self.count,)
        for i in range(self.count):
            for name in (GATE, UP):
                found[f"experts.{i}.{name}.weight"] = (self.wide, hidden)
            found[f"experts.{i}.{DOWN}.weight"] = (hidden, self.wide)
        if self.biased:
            biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in found.items() if "weight" in name}
            found |= biases
        return found


def check_experts(where: str, count: int, chosen: int, layers: int) -> None:
    """Raise CheckpointError if no model has this many experts in each of its layers, or fewer than a token chooses."""
    if count > MOST or count * layers > MOST_OF_ALL:
        raise CheckpointError(
            f"{where} gives {count} experts to each of {layers} layers, and no model has more than {MOST:,} in one or "
            f"{MOST_OF_ALL:,} in all; fetch it again."
        )
    if not 1 <= chosen <= count:
        raise CheckpointError(f"{where} chooses {chosen} of {count} experts for each token; fetch it again.")


def check_block(columns: int, block: int, *, zero_points: bool) -> None:
    """Raise ExportError where operators do not take experts' matrices of these channels in blocks of this size."""
    if columns % block:
        raise ExportError(
            f"The experts' matrices read {columns} channels, which blocks of {block} do not divide; choose a smaller "
            "--block-size."
        )
    if zero_points and columns == block:
        raise ExportError(
            f"The experts' matrices have rows of one block of {block}, which onnxruntime takes without zero points "
            "alone; choose --symmetric, or a smaller --block-size."
        )


def expert_name(block: str, expert: int, projection: str, part: str = "weight") -> str:
    """The name of an expert's matrix, or of its bias. block: that of all experts, as `model.layers.0.mlp`."""
    return f"{block}.experts.{expert}.{projection}.{part}"


def rows_of(rows: int, place: int, count: int, *, turned: bool) -> slice:
    """The rows of one of `count` matrices in a parameter of all of them: see `Experts.turned`."""
    each = rows // count
    return slice(place, None, count) if turned else slice(place * each, (place + 1) * each)


def member_of(stack: Any, place: int, count: int, *, turned: bool) -> Any:
    """One of `count` matrices, or biases, in an expert's part of a parameter: a view of that tensor or array."""
    rows = stack.swapaxes(0, -1) if turned else stack
    return rows[rows_of(len(rows), place, count, turned=turned)]


def stack_name(block: str, projection: str) -> str:
    """The name of the matrices of all experts, one after the other."""
    return f"{block}.experts.{projection}.weight"


def gguf_stacks(block: str) -> dict[str, str]:
    """The matrices of all experts by their names in GGUF files. block: that of all experts in a layer."""
    return {f"ffn_{name.removesuffix('_proj')}_exps": f"{block}.experts.{name}" for name in EXPERT_PROJECTIONS}


def first_of(name: str) -> str:
    """The first expert's matrix, where a name is that of all of them; any other name as it is."""
    found = STACK.fullmatch(name)
    return name if found is None else expert_name(found[1], 0, found[2], found[3])


def parameter_of(name: str) -> str:
    """transformers' parameter that a tensor is, or is a part of."""
    if (found := OF_EXPERT.fullmatch(name)) is None:
        return name
    block, _, member, part = found.groups()
    suffix = "_bias" if part == "bias" else ""
    return next(f"{block}.experts.{parameter}{suffix}" for parameter, members in STACKED.items() if member in members)
