"""`edge profile --speculate`: how often each drafter is right on this bundle, and what that brings on this device."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edge.bundle import Bundle
from edge.cli.answering import open_answering
from edge.cli.export import stages
from edge.cli.tables import console, table
from edge.errors import InputError
from edge.registry import Entry
from edge.runtime.check.acceptance import POSITIONS, Acceptance, measure
from edge.runtime.load import as_asked, open_engine
from edge.runtime.load_options import LoadOptions
from edge.runtime.model import Model
from edge.runtime.profile.profile import ProfileOptions, settled
from edge.runtime.speculate.drafter import AUTO, DRAFTERS, OFF, check_argument, check_name, parts_of_model
from edge.runtime.text.tokenizer import Text


def profile_drafts(path: Path, drafters: Sequence[str], options: ProfileOptions, as_json: bool) -> None:
    """Measure and print.

    drafters: those to measure; where none is named, all that need no argument and that the bundle has the parts for.
    """
    for name in drafters:
        check_name(name)
        if name == OFF:
            raise InputError("Plain decoding is measured with every drafter; omit --drafter off.")
    bundle = open_answering(path)
    if bundle.manifest.encoder is not None:
        raise InputError(f"{path} is no decoder, and drafters are measured on decoders alone.")
    names = list(dict.fromkeys(drafters))
    if not names:
        names = [name for name, drafter in DRAFTERS.items() if _measured(drafter, _with(name, bundle, options))]
    asked = {name: _with(name, bundle, options) for name in names}
    for name, in_parts in asked.items():
        check_argument(name, in_parts)
    groups = _by_engine(asked)
    bundle.check_files_once()
    text = Text(bundle)
    found: list[Acceptance] = []
    options = settled(bundle, options)
    with stages() as (progress, _):

        def tell(done: int, total: int) -> None:
            progress(done, total, "answering with each drafter")

        each_s = options.seconds / sum(1 + len(group) for group in groups)
        for group in groups:
            measured = _answers(bundle, text, group, each_s * (1 + len(group)), options, tell)
            found += measured[1:] if found else measured  # plain decoding is that over the whole graph
            gc.collect()  # the engine, whose weights make room for the next one's
    plain = found[0]
    found[1:] = sorted(found[1:], key=lambda each: names.index(each.drafter))
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
        return
    places = " ".join(f"{position:>3}" for position in range(1, POSITIONS + 1))
    title = f"{bundle.manifest.name}: drafted tokens that were right, in %, by their position"
    rows = table(title, "Drafter", "Drafts", places, "A step", "ms", "tok/s", "Gain", text=1)
    for each in found:
        pairs = zip(each.right, each.seen, strict=True)
        shares = " ".join(f"{100 * right / seen:3.0f}" if seen else "  -" for right, seen in pairs)
        gain = f"{each.tokens_per_s / plain.tokens_per_s:.2f}" if plain.tokens_per_s else ""
        drafted = (
            ("", "", "")
            if each is plain
            else (f"{each.share:.0%}", f"{each.accepted_per_step:.2f}", f"{each.draft_ms:.3f}")
        )
        rows.add_row(each.drafter, drafted[0], shares, *drafted[1:], f"{each.tokens_per_s:.0f}", gain)
    console().print(rows)
    print("Drafts: steps with any. A step: tokens accepted in it, and ms of drafting. Gain: over plain decoding (off).")


def _with(drafter: str, bundle: Bundle, options: ProfileOptions) -> Bundle:
    """The bundle as it is loaded for a drafter."""
    own = {name: getattr(options, name) for name in ("provider", "threads", "strict")}
    return as_asked(bundle, LoadOptions(speculate=drafter, **own))


def _measured(drafter: Entry, bundle: Bundle) -> bool:
    """True if a drafter is measured by default: it serves decoders, and needs no more than the bundle has."""
    needs = drafter.asked.startswith(f"{drafter.name}=") or (
        drafter.traits.get("segments") and not bundle.manifest.segments
    )
    return "decoder" in drafter.traits["serves"] and not needs


def _by_engine(asked: Mapping[str, Bundle]) -> list[list[str]]:
    """The drafters that `edge run` would run over engines of one kind, side by side: first those over that of plain
    decoding, of which there may be none; then each that runs parts of the model.

    Raises:
        InputError: the bundle lacks what one of them needs.
    """
    whole, parts = list[str](), list[list[str]]()
    for name, bundle in asked.items():
        if parts_of_model(name, bundle) is not None:
            parts.append([name])
        else:
            whole.append(name)
    return [whole, *parts]


def _answers(
    bundle: Bundle,
    text: Text,
    names: Sequence[str],
    seconds: float,
    options: ProfileOptions,
    progress: Callable[[int, int], None],
) -> list[Acceptance]:
    """Open an engine and measure plain decoding and these drafters on it."""
    drafter = names[0] if names else OFF
    engine = open_engine(
        bundle,
        context=options.context,
        threads=options.threads,
        provider=options.provider,
        strict=options.strict,
        speculate=drafter,
        kv=AUTO,
    )
    return measure(lambda name: Model(engine.bundle, engine, text, speculate=name), names, seconds, progress)
