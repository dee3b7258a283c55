"""`edge profile --speculate`: how often each drafter is right on this bundle, and what that brings on this device."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import open_bundle
from edge.cli.export import stages
from edge.cli.profile_tables import console, table
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.runtime.engine import Engine
    from edge.runtime.speculate.acceptance import Acceptance


def profile_drafts(path: Path, seconds: float, threads: int | None, context: int | None, as_json: bool) -> None:
    """Measure and print."""
    from edge.runtime.loading import open_engine
    from edge.runtime.model import Model
    from edge.runtime.speculate.acceptance import POSITIONS, measure
    from edge.runtime.speculate.base import DRAFTERS
    from edge.runtime.text import Text

    bundle = open_bundle(path)
    if bundle.manifest.encoder is not None:
        raise InputError(f"{path} is no decoder; its answers are drafted with --draft-from-input, if at all.")
    bundle.check_files_once()
    engine, text = open_engine(bundle, context=context, threads=threads), Text(bundle)
    names = [name for name in DRAFTERS if "=" not in name]

    own = "self" if bundle.manifest.segments else None  # which drafts over another engine
    with stages() as (progress, _):

        def answers(engine: Engine, names: Sequence[str], seconds: float) -> list[Acceptance]:
            return measure(
                lambda name: Model(bundle, engine, text, speculate=name),
                names,
                seconds,
                lambda done, total: progress(done, total, "answering with each drafter"),
            )

        found = answers(engine, names, seconds * len(names) / (len(names) + 1) if own else seconds)
        if own:
            del engine  # its weights make room
            apart = open_engine(bundle, context=context, threads=threads, speculate=own)
            found += answers(apart, [own], seconds / (len(names) + 1))[1:]
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
        return
    plain = found[0]
    places = " ".join(f"{position:>3}" for position in range(1, POSITIONS + 1))
    title = f"{bundle.manifest.name}: drafted tokens that were right, in %, by their position"
    rows = table(title, "Drafter", "Drafts", places, "A step", "ms", "tok/s", "Gain")
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
