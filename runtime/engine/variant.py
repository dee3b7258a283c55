"""How a bundle is loaded: options, and the variant that an engine opens, which `edge.runtime.choose` makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8, KV_DTYPES
from edge.runtime.limits import MOST_BEAMS
from edge.runtime.memory.shares import WAIT, WHEN_FULL
from edge.runtime.options import (
    LARGEST,
    Options,
    day,
    flag,
    integer,
    number,
    one_of,
    option,
    refused,
    text,
    unless_none,
)
from edge.runtime.providers import BEST, provider_name

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.memory.plan import Plan
    from edge.runtime.providers.base import Provider
    from edge.runtime.skip.base import SkipPolicy

AUTO, OFF = "auto", "off"
DECODER, TREE, PREFILL = "decoder", "tree", "prefill"  # roles of graphs

CONTEXT = integer("context", "a whole number of tokens", least=-LARGEST)  # an engine knows its range
BYTES = number("memory", "an amount of bytes, or a text like 300MB", least=1, most=2**63)


def amount(value: Any) -> int | str:
    """The check of an amount of memory: bytes, or a text, which is read where it is used."""
    return str(value) if isinstance(value, str) else int(BYTES(value))


def named_or_made(value: Any) -> Any:
    """The check of a provider: its name, or an object that opens graphs."""
    if isinstance(value, str) or (hasattr(value, "open") and hasattr(value, "allocate")):
        return value
    raise refused("provider", "a name such as cpu, or a provider", value)


@dataclass(frozen=True)
class LoadOptions(Options):
    """How a bundle is loaded.

    Args:
        context: maximum tokens of prompt and answer together; default: the bundle's, up to 4,096.
        threads: threads to compute with, shared by all models of this process: the first one decides, and another
            number afterwards is not used, which a warning of the log says once. Default: one per core, up to 8.
        prefill_chunk: maximum prompt tokens of a decoder to run in one step; smaller ones need less memory. Default:
            128.
        memory: maximum bytes that this process may hold, as a number or like ``300MB``: what fits is chosen before
            anything is loaded, the context too where none is given. What the program holds already counts.
        when_full: what becomes of an answer that `memory` has no room for while others are under way: it waits for them
            (``wait``), or is refused (``refuse``).
        beams: maximum beams of a search that there must be memory for, or of a decoder's prompts answered side by side;
            default: as many as the bundle sets.
        speculate: what drafts tokens of an answer that are verified several in a step: ``auto``, which drafts for
            decoders alone, ``off`` or a drafter's name; see docs/guide/speculation.md.
        exact: whether the same call gives the same text, bit for bit, whatever is drafted, whatever was asked before,
            alone or among other prompts. Default: yes where anything may draft. False is faster: drafts then change
            the last bits of logits, and so, once in a while, a word. An exact encoder-decoder takes no beams.
        skip: which layers are left out of a decoder: ``off``, or a policy such as ``unified:0.2``; see
            docs/guide/skipping.md.
        skip_anyway: answer under a setting of `skip` that ruins this bundle, too, which is refused otherwise.
        kv: what a decoder's KV cache is kept in: ``float32``, ``int8``, which takes a quarter of the memory, or
            ``auto``: int8 where kernels of our own attend to it (edge-lm-kernels), which is faster at any length;
            elsewhere float32, or int8 where `memory` has room for no other; see docs/guide/kv-cache.md.
        provider: the execution provider that runs the graphs, by its name or as an object; ``auto``: the fastest of
            those that were measured here with this bundle, else ``cpu``; see docs/guide/providers.md.
        date: the day, ``YYYY-MM-DD``, that a chat template which tells the model the date tells it;
            default: today, which is said once.
        strict: whether a graph is refused of which a provider that is named cannot run every node, instead of running
            these on the CPU. Default: yes on an NPU.
    """

    context: int | None = option(None, unless_none(CONTEXT))
    threads: int | None = option(None, unless_none(integer("number of threads", "at least 1", least=1)))
    prefill_chunk: int | None = option(None, unless_none(integer("prefill chunk", "1 token or more", least=1)))
    memory: int | str | None = option(None, unless_none(amount))
    when_full: str = option(WAIT, one_of("option when_full", " or ".join(WHEN_FULL), WHEN_FULL))
    beams: int | None = option(None, unless_none(integer("number of beams", "1 or more", least=1, most=MOST_BEAMS)))
    speculate: str = option(AUTO, text("option speculate"))
    exact: bool | None = option(None, unless_none(flag("option exact")))
    skip: str = option(OFF, text("option skip"))
    skip_anyway: bool = option(False, flag("option skip_anyway"))
    kv: str = option(AUTO, text("option kv"))
    provider: str | Provider = option(AUTO, named_or_made)
    strict: bool | None = option(None, unless_none(flag("option strict")))
    date: str | None = option(None, unless_none(day))


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions`, for type checkers."""

    context: int | None
    threads: int | None
    prefill_chunk: int | None
    memory: int | str | None
    when_full: str
    beams: int | None
    speculate: str
    exact: bool | None
    skip: str
    skip_anyway: bool
    kv: str
    provider: str | Provider
    strict: bool | None
    date: str | None


@dataclass(frozen=True)
class Variant:
    """What an engine opens, and how it runs steps.

    Args:
        role: of the decoder's graph.
        kv: what the KV cache is kept in: float32 or int8.
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
    """Whether the decoder runs as one graph of all layers, whatever is left out of it."""
    return policy is None or bundle.routed


def kv_dtypes(
    bundle: Bundle, kv: str = AUTO, *, whole: bool = True, trees: bool = False, provider: str | Provider = BEST
) -> list[str]:
    """What the KV cache may be kept in, the best first, where `kv` is asked for: float32, int8, or auto.

    whole: whether the decoder runs as one graph. trees: whether it verifies trees of drafts, if it can. provider: what
    runs it.

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
    return [INT8] if not trees and _on_our_kernels(bundle, provider) else [FLOAT32, INT8]


def _on_our_kernels(bundle: Bundle, provider: str | Provider) -> bool:
    """Whether kernels of our own attend to a KV cache in int8 here, of which they read a quarter."""
    from edge.runtime.costs.measured import best_provider
    from edge.runtime.kernels.graph import attends_to_bytes

    if not attends_to_bytes(bundle):
        return False
    return (best_provider(bundle) if provider == AUTO else provider_name(provider)) == BEST
