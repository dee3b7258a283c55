"""The variant that an engine opens, which `edge.runtime.choose` makes of the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8, KV_DTYPES
from edge.runtime.providers import BEST, provider_name

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.memory.plan import Plan
    from edge.runtime.providers.provider import Provider
    from edge.runtime.skip.skip_policy import SkipPolicy

AUTO, OFF = "auto", "off"
DECODER, PREFILL = "decoder", "prefill"  # roles of graphs


@dataclass(frozen=True)
class Variant:
    """The graphs that an engine opens, and how it runs steps.

    Args:
        role: of the decoder's graph.
        kv: type of the KV cache: float32 or int8.
        prefill: whether long prompts are read by the int8 prefill graph.
        policy: which segments run, where the engine is one over segments, whose graph has the role `skip`.
        exact: run an even number of tokens in every step, and of rows of logits, the last one twice where it would be
            odd. Kernels take rows by twos and a last one alone, which differs in its last bits; so an answer does not
            depend on how many tokens its steps had.
        context: the largest KV capacity that will be asked for, in tokens; default: the bundle's, up to 4,096.
        speculate: what drafts.
        plan: what a memory budget has room for, instead of `context`.
        refuse: whether an answer that the budget has no room for at present is refused instead of waiting.
        target: the name of graphs for one kind of device, which run instead; see `edge.runtime.engine.graphs`.
        limit: maximum bytes of the device's memory.
    """

    role: str = DECODER
    kv: str = FLOAT32
    prefill: bool = False
    policy: SkipPolicy | None = None
    exact: bool = False
    context: int | None = None
    speculate: str = OFF
    plan: Plan | None = None
    target: str | None = None
    limit: int | None = None
    refuse: bool = False


PLAIN = Variant()


def runs_whole(bundle: Bundle, policy: SkipPolicy | None) -> bool:
    """True if the decoder runs as one graph of all layers, whatever is left out of it."""
    return policy is None or bundle.routed


def kv_dtypes(bundle: Bundle, kv: str = AUTO, *, whole: bool = True, provider: str | Provider = BEST) -> list[str]:
    """Return the possible types of the KV cache for the choice `kv` (float32, int8, or auto), the best first.

    whole: whether the decoder runs as one graph. provider: what runs it.

    Raises:
        InputError: it is unknown, or the bundle cannot have it.
    """
    if kv not in (AUTO, *KV_DTYPES):
        raise InputError(f"There is no KV cache in {kv!r}; choose {AUTO}, {' or '.join(KV_DTYPES)}.")
    available = any(graph.role == KV8 for graph in bundle.manifest.graphs)
    if kv == INT8 and bundle.manifest.encoder is not None:
        raise InputError(f"{bundle.manifest.name} is an encoder-decoder, which keeps {FLOAT32}; omit --kv.")
    if kv == INT8 and not available:
        raise InputError(f"{bundle.manifest.name} has no graph over a KV cache in {INT8}; export the model again.")
    if kv == INT8 and not whole:
        raise InputError(f"A KV cache in {INT8} needs all layers in one graph; omit --kv, or what skips layers.")
    if kv != AUTO:
        return [kv]
    if not (available and whole):
        return [FLOAT32]
    return [INT8] if _on_our_kernels(bundle, provider) else [FLOAT32, INT8]


def takes_prefill(bundle: Bundle, policy: SkipPolicy | None, provider: str | Provider = BEST) -> bool:
    """True if a run may read prompts in the int8 prefill graph. Segments have none, and our kernels read prompts faster
    without it (docs/lab/long-prompts.md)."""
    return policy is None and bundle.manifest.prefill is not None and not _on_our_kernels(bundle, provider)


def _on_our_kernels(bundle: Bundle, provider: str | Provider) -> bool:
    """True if our kernels attend to an int8 KV cache here. They read a quarter of the bytes of a float32 one."""
    from edge.runtime.costs.measured import best_provider
    from edge.runtime.kernels.graph import attends_to_bytes

    if not attends_to_bytes(bundle):
        return False
    return (best_provider(bundle) if provider == AUTO else provider_name(provider)) == BEST
