"""Kinds of devices that graphs are written for: operators, weights and compilation of each.

A folder is one of them. Those that `--target` may name say how, and have what `kind.Kind` asks for.
"""

from __future__ import annotations

from edge.registry import Registry

KINDS = Registry(__name__, "target")
