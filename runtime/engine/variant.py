"""Which of a bundle's graphs an engine opens, and everything that this choice hangs on.

What goes with what is a table in docs/reference/variants.md; each refusal and each trade-off of it stands here, so that
an engine asks no further questions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8, KV_DTYPES, PREFILL_VERSION, SKIP
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
from edge.runtime.providers import BEST, check_provider, provider_name

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.memory.plan import Plan
    from edge.runtime.providers.base import Provider
    from edge.runtime.skip.base import SkipPolicy

AUTO, OFF = "auto", "off"
DECODER, TREE, PREFILL = "decoder", "tree", "prefill"  # roles of graphs

CONTEXT = integer("context", "a whole number of tokens", least=-LARGEST)  # an engine knows its range
BYTES = number("memory", "an amount of bytes, or a text like 300MB", least=1, most=2**63)

_log = logging.getLogger(__name__)


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
        target: the name of graphs for one kind of device, which run instead; see `edge.runtime.static` and
            `edge.runtime.device`.
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


def choose(bundle: Bundle, options: LoadOptions, *, present: int = 0) -> Variant:
    """The variant of a bundle for these options, the best that their memory has room for.

    present: bytes that this process holds already, which count where memory is limited.

    Raises:
        InputError: an option out of its range or unknown, options that do not go together, or that the bundle cannot
            have; or too little memory.
        BundleError: a file that an option names cannot be read.
    """
    from edge.runtime.speculate.base import branches, check_argument

    manifest, decoder = bundle.manifest, bundle.manifest.encoder is None
    check_provider(options.provider)
    if options.prefill_chunk is not None and not decoder:
        raise InputError(f"{manifest.name} is an encoder-decoder and reads no prompt in chunks; omit the chunk.")
    if options.when_full != WAIT and options.memory is None:
        raise InputError(f"when_full={options.when_full!r} is for a memory limit; give memory too, or leave it out.")
    speculate = check_argument(options.speculate, bundle)
    if not decoder and speculate != OFF and (options.beams or 1) > 1:
        raise InputError(f"The drafter {speculate} drafts one text at a time; leave it out, or ask for one beam.")
    policy = segments_policy(bundle, options.skip, speculate)
    if (target := _target(bundle, options, policy)) is not None:
        limit = options.memory
        if isinstance(limit, str):
            from edge.runtime.memory.plan import parse_size

            limit = parse_size(limit)
        return Variant(context=options.context, speculate=speculate, target=target, limit=limit)
    exact = (decoder or speculate != OFF) if options.exact is None else options.exact
    whole = runs_whole(bundle, policy)
    trees = policy is None and not exact and branches(speculate, bundle)
    kv = kv_dtypes(bundle, options.kv, whole=whole, trees=trees, provider=options.provider)
    plan = None if options.memory is None else _plan(bundle, options, present, exact, speculate, kv, policy is None)
    if plan is not None:
        kv = [plan.demand.kv]
        if plan.demand.width < 2 and speculate != OFF:  # segments would stand apart for nothing
            speculate, policy = OFF, segments_policy(bundle, options.skip, OFF)
    role = SKIP if not whole else DECODER if kv[0] == FLOAT32 else KV8
    if trees and kv[0] == FLOAT32:
        role = TREE
    prefill = policy is None and kv[0] == FLOAT32 and _prefill(bundle, plan)
    refuse = options.when_full != WAIT
    return Variant(role, kv[0], prefill, policy, exact, options.context, speculate, plan, refuse=refuse)


def _target(bundle: Bundle, options: LoadOptions, policy: SkipPolicy | None) -> str | None:
    """The bundle's graphs for the device of the provider that is named; None where it has none.

    Raises:
        InputError: an option that graphs of fixed sizes cannot have.
    """
    from edge.targets import CUDA, path_of, target_for

    provider = provider_name(options.provider)
    target = target_for(bundle, provider)
    if target is None:
        if provider == CUDA:
            raise InputError(
                f"{bundle.manifest.name} has no graphs for CUDA ({path_of(CUDA)}); export it with --target cuda, or "
                "choose the provider cpu."
            )
        return None
    unfit = {
        "--exact": options.exact,
        f"--skip {options.skip}": options.skip != OFF,
        f"--speculate {options.speculate}": policy is not None and options.skip == OFF,
        f"--kv {options.kv}": options.kv != AUTO,
        "--memory": options.memory is not None and target != CUDA,
        f"when_full={options.when_full!r}": options.when_full != WAIT,
    }
    for given, asked in unfit.items():
        if asked:
            raise InputError(
                f"{given} does not apply to the graphs of {bundle.manifest.name} for {target}; leave it out, or choose"
                " the provider cpu."
            )
    return target


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


def segments_policy(bundle: Bundle, skip: str, speculate: str) -> SkipPolicy | None:
    """How segments run, where the engine is one over segments; None where the whole graph runs.

    Raises:
        InputError: there is no such policy or drafter, the bundle cannot have it, or not both together.
    """
    from edge.runtime.skip import make_policy
    from edge.runtime.speculate.base import parts_of_model

    skipping, drafting = make_policy(skip, bundle), parts_of_model(speculate, bundle)
    if skipping is not None and drafting is not None:
        raise InputError(
            f"The drafter {speculate} skips layers that the whole model checks, which --skip {skip} does not run; "
            "choose one of the two."
        )
    return skipping or drafting


def _plan(
    bundle: Bundle, options: LoadOptions, present: int, exact: bool, speculate: str, kv: list[str], whole: bool
) -> Plan:
    from edge.runtime.memory.plan import make_exact_plan, make_plan

    make = make_exact_plan if exact and bundle.manifest.encoder is None else make_plan
    return make(
        bundle,
        options.memory,
        context=options.context,
        chunk=options.prefill_chunk,
        branches=options.beams,
        present=present,
        prefill=whole,  # segments have no int8 prefill graph
        kv=kv,
        speculate=speculate,
    )


def _prefill(bundle: Bundle, plan: Plan | None) -> bool:
    """Whether the bundle has an int8 prefill graph that can be used; why not is logged."""
    form, name = bundle.manifest.prefill, bundle.manifest.name
    if form is None:
        return False
    if not form.known:
        _log.warning(
            f"The int8 prefill graph of {name} is {form.weights} of version {form.version}, and this edge reads int8 "
            f"of version {PREFILL_VERSION}: prompts run without it, more slowly; upgrade edge, or export it again."
        )
        return False
    if plan is not None and not plan.demand.prefill:
        _log.warning(
            f"The memory limit has no room for the int8 prefill graph of {name}: prompts are read without it, more "
            "slowly."
        )
        return False
    return True
