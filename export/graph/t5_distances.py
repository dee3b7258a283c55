"""T5's buckets of distances, each of which has a learned bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def buckets(config: Any, distances: NDArray[np.int64], *, bidirectional: bool) -> NDArray[np.int64]:
    """The bucket of each distance, key minus query: small ones by themselves, larger ones in logarithmic steps up to
    the maximum (Raffel et al. 2020, arXiv:1910.10683, section 2.1). In a decoder, keys after the query are in the first
    one."""
    count: int = config.relative_attention_num_buckets
    after = np.zeros_like(distances)
    if bidirectional:
        count //= 2
        after = (distances > 0) * count
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    single = count // 2
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(single))
    steps = steps / np.float32(math.log(config.relative_attention_max_distance / single)) * np.float32(count - single)
    large = np.minimum(single + steps.astype(np.int64), count - 1)
    found: NDArray[np.int64] = after + np.where(far < single, far, large)
    return found
