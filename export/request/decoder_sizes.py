"""Counts of a decoder's weights, and of the values that a step of it computes: what the memory model of an export adds
up."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING

from edge.export.facts.experts import OF_EXPERT
from edge.export.facts.tensors import EMBEDDING, matrices, packed_with

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

FLOAT = 4  # bytes
FACTOR = 36  # bytes of the second moment of a matrix's inputs: itself, in order, and its factor in float64
MOMENT = 20  # bytes of what is left of that while rows are solved
SOLVING = 48  # bytes of each weight of these rows
PROJECTED = 12  # bytes of each input of a text that has no moment, and of what goes from block to block
ATTENTION = 5  # copies of the scores [heads, S, S], where attention hands them out
STATES = 6  # of each of a layer's activations
NOT_MIXED = r"\.self_attn\.(k|v|o)_proj\.|\.experts\."  # a query may be twice as wide, with a gate


class DecoderSizes:
    """Counts of a decoder's weights and of the values that a step computes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from edge.export.facts.family import heads_of, widest_of

        self.shapes = {name: checkpoint.shape(name) for name in matrices(checkpoint)}
        self.counts = counts = {name: math.prod(shape) for name, shape in self.shapes.items()}
        layers = defaultdict[str, list[str]](list)
        for name in counts:
            if found := re.match(r"model\.layers\.\d+\.", name):
                layers[found[0]].append(name)
        in_layers = [name for names in layers.values() for name in names]
        self.layers = len(layers)
        self.total = sum(counts.values())
        self.body = sum(counts[name] for name in in_layers)
        self.vocabulary = self.total - self.body  # embedding, and a head of its own
        self.embedding = counts[EMBEDDING]
        self.layer = max(sum(counts[name] for name in names) for names in layers.values())
        self.matrix = max(counts[name] for name in in_layers)  # the largest one of a layer
        self._layers = list(layers.values())
        self.moments = max(sum(self.shapes[name][1] ** 2 for name in names) for names in layers.values())
        config = SimpleNamespace(**checkpoint.config)
        heads = heads_of(config)
        self.hidden, self.vocab, self.heads = int(config.hidden_size), int(config.vocab_size), heads.query
        self.kv_row = 2 * heads.key_value * heads.dim  # of one layer
        mixed = (
            sum(self.shapes[name][0] for name in names if not re.search(NOT_MIXED, name)) for names in self._layers
        )
        self.mixed = max(mixed)  # channels that a layer's mixer and dense blocks make
        self.row = (heads.query + 2 * heads.key_value) * heads.dim + 2 * widest_of(config) + 2 * self.hidden

    def without(self, own: set[str]) -> tuple[int, int, int]:
        """Weights of the largest layer and of the largest matrix in one, both without those that are `own`; and of
        these, which are experts', those of the largest projection of a layer."""
        rest = [[self.counts[name] for name in names if name not in own] for names in self._layers]
        projections = defaultdict[tuple[str, str], int](int)
        for each in filter(None, map(OF_EXPERT.fullmatch, own)):
            projections[each[1], each[3]] += self.counts[each[0]]
        return max(map(sum, rest)), max(max(layer, default=0) for layer in rest), max(projections.values(), default=0)

    def activations(self, tokens: int) -> int:
        """Bytes of all intermediate values of a layer."""
        return tokens * self.row * STATES * FLOAT

    def scores(self, tokens: int) -> int:
        """Bytes of the scores of a layer's attention."""
        return self.heads * tokens**2 * ATTENTION * FLOAT

    def solving(self, most: int, side_by_side: int = 1, tokens: float = math.inf) -> int:
        """Maximum bytes to solve a matrix of a layer with those packed with it, up to `most` rows at a time, and
        `side_by_side` of them at a time. tokens: of the text, where it is there as a whole."""
        found = [0]
        for names in self._layers:
            together = {tuple(packed_with(name, names)) for name in names}
            shapes = [(sum(self.shapes[name][0] for name in each), self.shapes[each[0]][1]) for each in together]
            takes = sorted(solving_bytes(min(most, rows), columns, tokens) for rows, columns in shapes)
            found.append(sum(takes[-side_by_side:]))
        return max(found)

    def states(self, tokens: int) -> int:
        """Bytes of the hidden states between layers."""
        return tokens * self.hidden * FLOAT


def solving_bytes(rows: int, columns: int, tokens: float = math.inf) -> int:
    from edge.export.quantize.conditioned import FEW

    if tokens < FEW * columns:  # their moment is not made
        return int(tokens) * (columns + int(tokens)) * PROJECTED + rows * columns * SOLVING
    return max(columns**2 * FACTOR, columns**2 * MOMENT + rows * columns * SOLVING)
