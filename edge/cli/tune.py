"""`edge tune`: adapters, and routers where a policy has them, learn to do with fewer layers."""

from __future__ import annotations

import argparse
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_fields, taken
from edge.cli.ending import interrupt
from edge.cli.export import stages
from edge.cli.run.terminal import CtrlC
from edge.errors import InputError
from edge.extras import needing
from edge.text_file import read_text

if TYPE_CHECKING:
    from edge.catalog import Progress, Say
    from edge.export.tune.trainer import TrainingStep

NAME = "tune"
HELP = "Train a model to do with fewer of its layers, for edge run --skip."
OF_RECIPES = ("model", "policy", "weights")  # texts that a recipe may set, besides the fields of Settings
SPOKEN = 10  # steps from one line about the loss to the next, and whose mean it is
OF_ANSWERS = ("answer", "temperature")  # what shapes the model's own answers
BUNDLE = ".edge"


def add_arguments(parser: Parser) -> None:
    from edge.export.tune.settings import Settings

    source = "a model directory, a .gguf file, a catalog name or a hub id"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=source)
    add = parser.options()
    add("-o/--out TUNED", "the folder to write, which edge export reads; or NAME.edge, see above", Path)
    add("--recipe FILE.toml", "a file of options by their names, for those that are not given here", Path)
    add("--weights KIND", "with -o NAME.edge: of the bundle, as in edge export")

    add = parser.options("policy")
    add("--policy NAME", "first, skipdecode, unified or ffn")
    add_fields(add, "policy", Settings)
    add_fields(parser.options("data"), "data", Settings)
    add = parser.options("training")
    add_fields(add, "training", Settings)
    add("--device NAME", "cpu or cuda (default: cuda where it is)")
    add("--threads N", "threads to compute with (default: Torch's)", int)
    add("--every N", "steps from one checkpoint to the next (default: 20)", int, default=20)
    add("--restart", "start again instead of resuming an interrupted run")


def command(args: argparse.Namespace) -> int:
    """Train a decoder so that it loses less quality when `edge run --skip` skips some of its layers.

    LoRA adapters (and, for first, routers that read the prompt) are trained to predict what the model predicts with
    all its layers, and merged into its weights. TUNED is a model directory: edge export TUNED --segments 1 makes it a
    bundle, which edge run --skip runs. An interrupted run leaves TUNED.tuning, from which the same command goes on.

    With -o NAME.edge all is done at once: the tuned model is kept in NAME, exported to NAME.edge, and measured next to
    the untuned one on sequences that were not trained on.
    """
    from edge.export.tune.settings import Settings

    asked = {} if args.recipe is None else read_recipe(args.recipe)
    # Text that is given replaces the recipe's prompts, and prompts that are given its text.
    replaced = ["prompts", *OF_ANSWERS] if args.data is not None and args.prompts is None else []
    for name in [*replaced, *(["data"] if args.prompts is not None else [])]:
        asked.pop(name, None)
    asked |= taken(args, Settings)
    asked |= {name: value for name in OF_RECIPES if (value := getattr(args, name)) is not None}
    if "data" in asked and "prompts" not in asked and (useless := [name for name in OF_ANSWERS if name in asked]):
        raise InputError(
            f"--{useless[0]} is about answers of the model's own, and with --data alone it gives none; give --prompts "
            f"too, or leave --{useless[0]} out."
        )
    for name, option in (("model", "MODEL"), ("policy", "--policy first, skipdecode, unified or ffn")):
        if name not in asked:
            raise InputError(f"There is nothing to tune without {option}; give it, or a recipe that has it.")
    if args.out is None:
        raise InputError("The tuned model needs a place; give it with -o TUNED.")
    if args.threads is not None and not 1 <= args.threads <= 1024:
        raise InputError(f"--threads must be between 1 and 1024, not {args.threads}.")
    if args.every < 1:
        raise InputError(f"--every must be 1 or more, not {args.every}.")
    if args.weights is not None and args.out.suffix != BUNDLE:
        raise InputError(f"--weights is about a bundle, and {args.out} is none; write -o {args.out.name}{BUNDLE}.")
    weights, training = asked.pop("weights", None), ("device", "threads", "every", "restart")
    return _run(str(asked.pop("model")), args.out, asked, weights, {name: getattr(args, name) for name in training})


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's options; the files it names lie next to it.

    Raises:
        InputError: it cannot be read, is no TOML, or holds what is no option or not of its kind.
    """
    try:
        content = tomllib.loads(read_text(path, "The recipe"))
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"The recipe {path} is not valid TOML: {e}.") from None
    from edge.export.tune.settings import Settings
    from edge.runtime.options import fields, has_option, option_of

    known = {option_of(field).destination: field for field in fields(Settings) if has_option(field)}
    asked = dict[str, Any]()
    for name, value in content.items():
        if name not in known and name not in OF_RECIPES:
            raise InputError(f"The recipe {path} sets {name!r}, which is no option of edge tune.")
        field = known.get(name)
        types = {"str"} if field is None or option_of(field).read else set(str(field.type).split(" | "))
        kinds: tuple[type, ...] = (int, float) if "float" in types else (int,) if "int" in types else (str,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(f"The recipe {path} sets {name} to {value!r}, which is of the wrong kind.")
        if field is None:
            asked[name] = value
        elif (read := option_of(field).read) is not None:
            asked[field.name] = read(str(value))
        else:
            asked[field.name] = path.parent / str(value) if "Path" in types else value
    return asked


def _run(model: str, out: Path, asked: dict[str, Any], weights: str | None, how: dict[str, Any]) -> int:
    """asked: fields of the settings. how: what else `tune` takes."""
    with needing("Tuning", "tune"):
        import peft  # noqa: F401, first: before anything that takes long
        import torch  # noqa: F401

        from edge.export.tune import tune
        from edge.export.tune.bundle import tune_to_bundle
        from edge.export.tune.settings import Settings
        from edge.export.tune.trainer import Stopped
    settings = Settings(**asked)
    started = time.monotonic()
    outcome = None
    with _Interrupts(signal.SIGTERM) as stop, _training(settings.steps) as (progress, told, say):
        how |= {"stop": stop, "progress": _stopping(progress, stop), "told": told, "say": say}
        try:
            if out.suffix == BUNDLE:
                outcome = tune_to_bundle(model, out, settings, weights=weights, **how)
            else:
                tune(model, out, settings, **how)
        except Stopped as stopped:
            say(
                f"The training was interrupted after step {stopped.step} of {settings.steps}; the same command goes on "
                f"from there ({out}.tuning)."
            )
            return stop.status
        except KeyboardInterrupt:
            say(f"Tuning was interrupted at once; the same command goes on from what was kept in {out}.tuning.")
            raise
    took = time.monotonic() - started
    if outcome is None:
        print(f"{out}: tuned for {settings.policy} in {took:.0f} s; edge export {out} --segments N makes a bundle.")
        return 0
    from edge.cli.eval_skip import show

    found = outcome.policies
    title = f"{out}: {found[0].tokens:,} tokens that were not trained on"
    show(found, title, {"untuned, off": outcome.untuned, "off": outcome.tuned})
    print(f"{out}: tuned for {settings.policy} in {took:.0f} s; {out.with_suffix('')} holds the model.")
    return 0


class _Interrupts(CtrlC):
    """Before it was called for the first time, which the training does between steps, an interruption takes effect at
    once."""

    training = False

    def __call__(self) -> bool:
        self.training = True
        return self.pressed

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self.training:
            interrupt(number, frame)
        super()._press(number, frame)


def _stopping(progress: Progress, stop: _Interrupts) -> Progress:
    """`progress`, which ends what is at work where the user asked to stop and nobody will ask: after the training."""

    def reported(done: int, total: int, stage: str) -> None:
        if stop.pressed:
            raise KeyboardInterrupt
        progress(done, total, stage)

    return reported


@contextmanager
def _training(steps: int) -> Iterator[tuple[Progress, Callable[[TrainingStep], None], Say]]:
    """Progress as of `stages`, and a function that shows each step's loss and share of layers left out."""
    with stages() as (progress, say):
        smooth: list[float] = []

        def told(step: TrainingStep) -> None:
            smooth.append(step.loss)
            loss = sum(smooth[-SPOKEN:]) / len(smooth[-SPOKEN:])
            progress(step.number + 1, steps, "training")
            if (step.number + 1) % SPOKEN == 0:
                say(f"step {step.number + 1} of {steps}: loss {loss:.3f}, {step.skipped:.0%} of the layers left out")

        yield progress, told, say
