"""The sizes that a manifest states, compared with those of graphs and weights before memory is taken for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edge.bundle import MANIFEST, WEIGHTS, Bundle
from edge.errors import BundleError
from edge.manifest_checks import token_faults

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.providers.provider import Session

Sizes = dict[int, int]  # of a shape's dimensions, by their places; the others are the host's to choose
NONE = -1  # the size of a layer that the manifest does not have


def check_stated(bundle: Bundle) -> None:
    """BundleError where a manifest states what cannot be together: more weights than their file has bytes, or tokens
    that are not in the vocabulary."""
    manifest = bundle.manifest
    there = bundle.size(WEIGHTS) + sum(file.size for file in manifest.external)
    for fault in token_faults(manifest, manifest.dims.vocab_size):
        raise BundleError(f"{bundle.path(MANIFEST)} cannot be used: {fault}; export the model again.")
    groups = [*manifest.groups, *(() if manifest.prefill is None else manifest.prefill.groups)]
    stated = sum(group.bytes for group in groups)
    if max(stated, manifest.dims.vocab_size) > there:
        raise BundleError(
            f"{bundle.path(WEIGHTS)} has {there} bytes, too few for weights of {stated} bytes and a vocabulary of "
            f"{manifest.dims.vocab_size}; export the model again."
        )


def check_fits(bundle: Bundle, session: Session, name: str, *, turned: bool = False) -> None:
    """BundleError where a graph's inputs and outputs are not of the sizes that the manifest states. name: of the
    graph. turned: whether values of cross-attention have their dimensions before their rows."""
    states = {state.input: dict(enumerate(state.shape, 1)) for state in bundle.manifest.states}
    for value, shape in session.shapes.items():
        if not shape and value.startswith("at."):
            continue  # of a unit that may be left out, which has none
        found = states.get(value.replace("present.", "past.", 1))
        for place, size in (_stated(bundle.manifest, value, turned) if found is None else found).items():
            if place >= len(shape) or shape[place] != size:
                raise _misfit(bundle, value, name, shape, f"{size} for its dimension {place + 1}")


def check_shapes(bundle: Bundle, session: Session, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """BundleError where inputs and outputs of a graph of fixed sizes are not of these shapes."""
    for value, shape in session.shapes.items():
        if value in shapes and tuple(shape) != shapes[value]:
            raise _misfit(bundle, value, name, shape, f"{shapes[value]}")


def check_given(bundle: Bundle, session: Session, name: str, given: Collection[str]) -> None:
    """BundleError where a graph wants an input that nobody gives it."""
    for value in sorted(session.inputs - set(given)):
        raise BundleError(f"{bundle.root}: nobody gives {value[:60]!r} to the graph {name}; export the model again.")


def _misfit(bundle: Bundle, value: str, name: str, shape: Sequence[Any], stated: str) -> BundleError:
    return BundleError(
        f"{bundle.root}: {value[:60]} of the graph {name} has the shape {str(shape)[:100]}, and the manifest states "
        f"{stated}; export the model again."
    )


def _stated(manifest: Manifest, value: str, turned: bool) -> Sizes:
    """Sizes that a manifest states for an input or output, by dimension."""
    kind, _, rest = value.partition(".")
    if kind == "logits":
        return {2: manifest.dims.vocab_size}
    if kind == "at":
        return {2: manifest.dims.hidden_size}
    layout = {"past": manifest.kv, "present": manifest.kv, "cross": manifest.cross}.get(kind)
    number, _, part = rest.partition(".")
    if layout is None or part not in ("key", "value"):
        return {}
    if not number.isdecimal() or int(number) >= len(layout.layers):
        return {0: NONE}
    layer = layout.layers[int(number)]
    return {1: layer.heads, 2 if turned and (kind, part) == ("cross", "value") else 3: layer.head_dim}
