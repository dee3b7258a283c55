"""What each group of a model's weights takes."""

from __future__ import annotations

from collections import Counter

from edge.manifest import TensorGroup


class Tally:
    """Adds up one group's weights for the manifest."""

    def __init__(self) -> None:
        self.bytes = 0
        self.weight_bits = 0
        self.blocks = Counter[int]()  # parameters by block size
        self.methods = Counter[str]()  # parameters by method

    def add(self, parameters: int, size: int, bits: int, block_size: int, method: str) -> None:
        self.bytes += size
        self.weight_bits += parameters * bits
        self.blocks[block_size] += parameters
        self.methods[method] += parameters

    def group(self, name: str) -> TensorGroup:
        """Block size and method are those of most of the group's weights."""
        parameters = self.blocks.total()
        return TensorGroup(
            name=name,
            parameters=parameters,
            bytes=self.bytes,
            bits=self.weight_bits / parameters,
            block_size=self.blocks.most_common(1)[0][0],
            method=self.methods.most_common(1)[0][0],
        )
