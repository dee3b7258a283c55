"""From a checkpoint to a tuned bundle and its figures at once: tuning, exporting and measuring, each resumed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundle import Bundle, open_bundle
from edge.errors import InputError
from edge.export.checkpoint import open_checkpoint
from edge.export.drafts.prompts import built_in
from edge.export.facts.progress import Progress
from edge.export.pipeline.routers import ABOUT
from edge.export.quantize import METHODS
from edge.export.tune import ANSWERS, identity, refuse_other, split, tune
from edge.export.tune.folder import working
from edge.export.tune.generate import exported
from edge.export.tune.settings import POLICIES, Settings
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.check.skip_policies import SkipFigures, measure
from edge.runtime.load import open_engine

VALIDATION = 16  # sequences that figures are taken on
GIVEN = 4  # one in GIVEN of a sequence's tokens is its prompt
TUNED, UNTUNED = "tuned", "untuned.edge"  # in the run's folder
FIGURES = "figures.json"


@dataclass(frozen=True)
class Outcome:
    """Costs and quality of a tuned bundle, on sequences that were not trained on.

    untuned, tuned: perplexities with all layers. policies: figures of the tuned bundle under skip policies.
    """

    untuned: float
    tuned: float
    policies: list[SkipFigures]


def tune_to_bundle(
    source: str, out: Path, settings: Settings, *, weights: str | None, restart: bool, progress: Progress,
    say: Callable[[str], None], threads: int | None, **training: Any,
) -> Outcome:  # fmt: skip
    """Tune a decoder, keep the tuned model in the folder NAME, export it to the bundle `out`, NAME.edge, with the
    segments and the routers that the policy needs, and measure it next to the untuned model.

    weights: as of `edge.export`. training: what `tune` takes besides.

    Raises:
        EdgeError, Stopped: as `tune`.
    """
    kept, work = out.with_suffix(""), out.with_name(f"{out.name}.tuning")
    for path in (out, kept):
        if path.exists():
            raise InputError(f"{path} exists; choose another name for the tuned bundle, or remove it.")
    settings = dataclasses.replace(settings, validation=VALIDATION)
    if weights is not None:
        METHODS.find(weights)
    with working(work, restart=restart):
        tuned = work / TUNED
        if tuned.exists():
            _check_same(source, tuned, settings, say, progress)
        else:
            tune(source, tuned, settings, threads=threads, progress=progress, say=say, **training)
        segments = POLICIES.find(settings.policy).traits.get("segments", settings.unit)
        whole: dict[str, Any] = {"check": True, "candidates": True, "draft_text": None}
        made = open_bundle(
            exported(tuned, work / out.name, progress, weights=weights, segments=segments, name=out.stem, **whole)
        )
        untuned = open_bundle(exported(source, work / UNTUNED, progress, weights=weights))
        outcome = _measured(untuned, made, tuned, settings, threads, progress)
        (tuned / FIGURES).write_text(json.dumps(dataclasses.asdict(outcome), indent=1) + "\n", encoding="utf-8")
        tuned.rename(kept)
        made.root.rename(out)
        shutil.rmtree(work, ignore_errors=True)
    return outcome


def _check_same(source: str, tuned: Path, settings: Settings, say: Callable[[str], None], progress: Progress) -> None:
    """Raise InputError if the tuned model is that of another run."""
    checkpoint = open_checkpoint(source, progress=progress, say=say, floats=True)
    with built_in() as file:
        same = identity(checkpoint, settings, settings.sources(settings.prompts or file))
    refuse_other(
        tuned.parent, "a model tuned", same, json.loads((tuned / ABOUT).read_text(encoding="utf-8"))["settings"]
    )
    say("The model is tuned already; going on with its bundle.")


def _measured(
    untuned: Bundle, made: Bundle, tuned: Path, settings: Settings, threads: int | None, progress: Progress
) -> Outcome:
    validation, _ = split(open_checkpoint(str(tuned)), settings.sources(tuned / ANSWERS), settings)
    texts = [np.asarray(example.tokens) for example in validation]
    window = max(map(len, texts))
    given = max(1, window // GIVEN)
    texts = [text for text in texts if len(text) >= given + 2]

    def advance(done: int, total: int) -> None:
        progress(done, total, "measuring the tuned bundle")

    whole = [EngineLogits(open_engine(bundle, context=window, threads=threads), window) for bundle in (untuned, made)]
    sides = compare(whole[0], whole[1], texts, advance, given=given)
    del whole
    found = measure(made, _skips(made, tuned), texts, window=window, given=given, progress=advance)
    return Outcome(sides.reference, sides.candidate, found)


def _skips(made: Bundle, tuned: Path) -> list[str]:
    """The setting that the model was tuned for; of routers also each number of units that they can leave out."""
    skip = str(json.loads((tuned / ABOUT).read_text(encoding="utf-8"))["skip"])
    if made.manifest.routers is None:
        return [skip]
    routers = np.load(made.path(made.manifest.routers), allow_pickle=False)
    return [skip, *(f"{skip}:skip={n}" for n in range(1, int(np.isfinite(routers[:, -1]).sum()) + 1))]
