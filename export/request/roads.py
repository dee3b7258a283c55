"""The ways that models of each type take into a bundle."""

from __future__ import annotations

from dataclasses import dataclass

from edge.export.graph.families import FAMILIES, traced_types

OWN, TRACED, READY = "own graph", "traced", "ready"
ROADS = {
    OWN: "a graph that was written for the family: the fastest, with all that edge has.",
    TRACED: "by transformers' exporter, and compared with PyTorch: slower, on the CPU alone. Models that keep a state "
    "are refused.",
    READY: "decoders that are ONNX files already (Optimum, transformers.js, onnxruntime-genai), of any type.",
}


@dataclass(frozen=True)
class Road:
    """The way of one type of models. gguf: what GGUF files call it, where they are read."""

    model_type: str
    road: str
    gguf: str | None = None


def roads() -> list[Road]:
    """The ways of all types: of families, then of other decoders that transformers knows, where it is installed."""
    own = [Road(name, OWN, _gguf(entry.traits.get("gguf"))) for name, entry in sorted(FAMILIES.items())]
    return [*own, *(Road(name, TRACED) for name in sorted(traced_types())), Road("*", READY)]


def _gguf(named: str | list[str] | tuple[str, ...] | None) -> str | None:
    return named if named is None or isinstance(named, str) else ", ".join(named)
