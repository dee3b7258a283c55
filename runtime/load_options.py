"""Options of loading a bundle: those of `edge.load`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.errors import InputError
from edge.runtime.engine.variant import AUTO, OFF
from edge.runtime.limits import MOST_BEAMS
from edge.runtime.memory.shares import WAIT, WHEN_FULL
from edge.runtime.options import (
    DECODER,
    LARGEST,
    SPEECH,
    TEXT,
    Options,
    Others,
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
from edge.runtime.providers import PROVIDERS
from edge.runtime.skip import POLICIES

if TYPE_CHECKING:
    from edge.runtime.providers.provider import Provider

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


def _drafters() -> Iterable[str]:
    from edge.runtime.speculate.drafter import DRAFTERS  # whose module brings onnxruntime

    return DRAFTERS


def _day(given: str) -> str:
    try:
        return day(given)
    except InputError:
        import argparse  # which only the command has loaded

        raise argparse.ArgumentTypeError(f"a day is written as 2025-01-31, not {given!r}") from None


@dataclass(frozen=True)
class LoadOptions(Options):
    """Options of loading a bundle; docs/reference/options.md says what each field means."""

    speculate: str = option(
        AUTO,
        text("option speculate"),
        flag="--speculate WHAT",
        heading="speed",
        help="what drafts tokens, several of which the model verifies in a step: auto (default for chat models), off, "
        "or a name: %(names)s",
        names=_drafters,
        about="what drafts tokens of an answer that are verified several in a step: `auto`, which drafts for decoders "
        "alone, `off` or a drafter's name ([speculation.md](../guide/speculation.md))",
    )
    exact: bool | None = option(
        None,
        unless_none(flag("option exact")),
        flag="--exact",
        heading="speed",
        help="the same text every time, whatever is drafted: the default for chat models, and with --speculate for "
        "text to text and speech. --no-exact is faster, and once in a while a word differs",
        about="whether the same call gives the same text, bit for bit, whatever is drafted, whatever was asked before, "
        "alone or among other prompts; default: yes where anything may draft. False is faster: drafts then change the "
        "last bits of logits, and so, once in a while, a word. An exact encoder-decoder takes no beams "
        "([speculation.md](../guide/speculation.md#the-same-text))",
    )
    skip: str = option(
        OFF,
        text("option skip"),
        flag="--skip POLICY",
        heading="speed",
        help="which layers are skipped: off (default), %(names)s",
        names=lambda: POLICIES,
        about="which layers are skipped: `off`, or a policy such as `unified:0.2` "
        "([skipping.md](../guide/skipping.md))",
    )
    skip_anyway: bool = option(
        False,
        flag("option skip_anyway"),
        flag="--skip-anyway",
        heading="speed",
        help="answer though what --skip leaves out ruins this model, which is refused",
        about="answer though what `skip` leaves out [ruins this bundle](../guide/skipping.md#what-is-refused), which "
        "is refused otherwise",
        needs=Others(
            ("skip",), "--skip-anyway insists on what --skip leaves out; name a policy with --skip, or omit it."
        ),
    )
    threads: int | None = option(
        None,
        unless_none(integer("number of threads", "at least 1", least=1)),
        flag="--threads N",
        heading="machine",
        help="threads to compute with (default: one per core, up to 8)",
        about="threads to compute with, shared by all models of this process: the first one decides, and another "
        "number afterwards is not used, which a warning of the log says once. Default: one per core that the process "
        "may use, up to 8: the smaller of its affinity and its container's CPU quota",
    )
    context: int | None = option(
        None,
        unless_none(CONTEXT),
        flag="--context N",
        heading="machine",
        help="maximum tokens of prompt and answer (default: the bundle's, up to 4096)",
        kinds=(DECODER, TEXT),
    )
    prefill_chunk: int | None = option(
        None,
        unless_none(integer("prefill chunk", "1 token or more", least=1)),
        flag="--prefill-chunk N",
        heading="machine",
        help="maximum prompt tokens of a step; fewer need less memory (default: 128)",
        kinds=(DECODER,),
    )
    provider: str | Provider = option(
        AUTO,
        named_or_made,
        flag="--provider NAME",
        heading="machine",
        help="what runs the graphs: auto (default), %(names)s",
        names=lambda: PROVIDERS,
        about="the execution provider that runs the graphs, by its name or as an object; `auto`: the fastest of those "
        "that were measured here with this bundle, else `cpu` ([providers.md](../guide/providers.md))",
    )
    strict: bool | None = option(
        None,
        unless_none(flag("option strict")),
        flag="--strict",
        heading="machine",
        help="whether a graph is refused of which the provider cannot run every node (default: on an NPU)",
    )
    kv: str = option(
        AUTO,
        text("option kv"),
        flag="--kv TYPE",
        heading="machine",
        help="type of the KV cache: float32, int8, or auto (default): int8 if faster or --memory is short",
        about="what a decoder's KV cache is kept in: `float32`, `int8`, which takes a quarter of the memory, or "
        "`auto`: int8 where edge-lm-kernels attend to it, which is faster at any length; elsewhere float32, or int8 "
        "where `memory` has room for no other ([kv-cache.md](../guide/kv-cache.md))",
        kinds=(DECODER,),
    )
    memory: int | str | None = option(
        None,
        unless_none(amount),
        flag="--memory SIZE",
        heading="machine",
        help="maximum private memory, such as 300MB; see edge plan",
        about="maximum bytes that this process may hold, as a number or like `300MB`: what fits is chosen before "
        "anything is loaded, the context too where none is given. What the program holds already counts "
        "([memory.md](../guide/memory.md))",
    )
    when_full: str = option(
        WAIT,
        one_of("option when_full", " or ".join(WHEN_FULL), WHEN_FULL),
        help="what becomes of an answer that `memory` has no room for while others are under way: it waits for them "
        "(`wait`), or raises `edge.InputError` (`refuse`)",
    )
    beams: int | None = option(
        None,
        unless_none(integer("number of beams", "1 or more", least=1, most=MOST_BEAMS)),
        flag="--beams N",
        help="maximum beams of a search that there must be memory for, or of a decoder's prompts answered side by "
        "side (default: as many as the bundle sets)",
        kinds=(TEXT, SPEECH),
    )
    date: str | None = option(
        None,
        unless_none(day),
        flag="--date YYYY-MM-DD",
        heading="prompt",
        help="the date that a chat template tells the model, where it does (default: today)",
        about="the date, `YYYY-MM-DD`, that a chat template tells the model, where it tells one; default: today, which "
        "a warning of the log says once",
        read=_day,
        kinds=(DECODER,),
    )
