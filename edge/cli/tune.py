"""`edge tune`: adapters, and routers where a policy has them, learn to do with fewer layers."""

from __future__ import annotations

import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.export import stages
from edge.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from edge.catalog import Progress, Say
    from edge.export.tune.trainer import Step

SPOKEN = 10  # steps from one line about the loss to the next, and whose mean it is
FILES = ("data", "prompts")  # of a recipe, beside it
OF_ANSWERS = ("answer", "temperature")  # what shapes the model's own answers
BUNDLE = ".edge"


def command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model directory, a .gguf file, a catalog name or a hub id."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="TUNED",
            help="The folder to write, which edge export reads; or NAME.edge: see below.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Take what is not given here from this file: options by their names."),
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="first, skipdecode, unified or ffn.")] = None,
    ratio: Annotated[
        float | None,
        typer.Option(metavar="R", help="Of all but skipdecode: the share of layers to leave out; default: 0.15."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="MIN-MAX", help="Of skipdecode: least and most layers that run; default: half to all."),
    ] = None,
    unit: Annotated[
        int | None, typer.Option(metavar="N", help="Of first: layers that one router decides on; default: 1.")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of first: units that have a router; default: some more than are left out."),
    ] = None,
    penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of first: how strongly --ratio is held, in nats; default: 60."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text, or JSONL lines with a text, or with a prompt and an answer."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts that the model answers itself, for training, beside --data too; default: built-in.",
        ),
    ] = None,
    answer: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum of tokens of these answers; default: 256.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="That these answers are drawn at; default: 1.")
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Training steps; default: 300.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Sequences of a step; default: 4.")] = None,
    length: Annotated[int | None, typer.Option(metavar="N", help="Most tokens of a sequence; default: 320.")] = None,
    rank: Annotated[int | None, typer.Option(metavar="N", help="Of the LoRA adapters; default: 16.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="X", help="The highest learning rate; default: 0.001.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="distill (default): the untouched model's predictions; lm: the text; both."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeats a run; default: 0.")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="KIND", help="Of products: bf16, fp32 or auto (default): what is faster.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="With -o NAME.edge: of the bundle, as edge export takes it."),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu or cuda; default: cuda where it is.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; default: Torch's.")] = None,
    every: Annotated[int, typer.Option(metavar="N", help="Steps from one checkpoint to the next.")] = 20,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an interrupted run left, instead of going on from it.")
    ] = False,
) -> None:
    """Tune a decoder, so that a policy can leave layers out of its answers at less cost in quality.

    LoRA adapters (and, for first, routers that read the prompt) are trained to predict what the model predicts with
    all its layers, and merged into its weights. TUNED is a model directory: edge export TUNED --segments 1 makes it a
    bundle, which edge run --skip runs. An interrupted run leaves TUNED.tuning, from which the same command goes on.

    With -o NAME.edge all is done at once: the tuned model is kept in NAME, exported to NAME.edge, and measured beside
    the untuned one on sequences that were not trained on.
    """
    given = {
        "model": model, "policy": policy, "ratio": ratio, "layers": layers, "unit": unit, "candidates": candidates,
        "penalty": penalty, "data": data, "prompts": prompts, "answer": answer, "temperature": temperature,
        "steps": steps, "batch": batch, "length": length, "rank": rank, "rate": rate, "loss": loss, "seed": seed,
        "precision": precision, "weights": weights,
    }  # fmt: skip
    asked = {} if recipe is None else read_recipe(recipe, given)
    # Text that is given takes the place of the recipe's prompts, and prompts that are given that of its text.
    replaced = ["prompts", *OF_ANSWERS] if data is not None and prompts is None else []
    for name in [*replaced, *(["data"] if prompts is not None else [])]:
        asked.pop(name, None)
    asked |= {name: value for name, value in given.items() if value is not None}
    if "data" in asked and "prompts" not in asked and (useless := [name for name in OF_ANSWERS if name in asked]):
        raise InputError(
            f"--{useless[0]} is about answers of the model's own, and with --data alone it gives none; give --prompts "
            f"too, or leave --{useless[0]} out."
        )
    for name, option in (("model", "MODEL"), ("policy", "--policy first, skipdecode, unified or ffn")):
        if name not in asked:
            raise InputError(f"There is nothing to tune without {option}; give it, or a recipe that has it.")
    if out is None:
        raise InputError("The tuned model needs a place; give it with -o TUNED.")
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"--threads must lie between 1 and 1024, not {threads}.")
    if every < 1:
        raise InputError(f"--every must be 1 or more, not {every}.")
    how = asked.pop("weights", None)
    if weights is not None and out.suffix != BUNDLE:
        raise InputError(f"--weights is about a bundle, and {out} is none; write -o {out.name}{BUNDLE}.")
    _run(str(asked.pop("model")), out, asked, how, device, threads, every, restart)


def read_recipe(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """A recipe's options; the files it names lie beside it.

    Raises:
        InputError: it cannot be read, is no TOML, or holds what is no option or not of its kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"The recipe {path} cannot be read: {e.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InputError(f"The recipe {path} is not valid TOML: {e}.") from None
    texts = ("model", "policy", "layers", "data", "prompts", "loss", "precision", "weights")
    numbers = ("ratio", "rate", "penalty", "temperature")
    for name, value in content.items():
        if name not in names:
            raise InputError(f"The recipe {path} sets {name!r}, which is no option of edge tune.")
        kinds: tuple[type, ...] = (str,) if name in texts else (int, float) if name in numbers else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(f"The recipe {path} sets {name} to {value!r}, which is of the wrong kind.")
        if name in FILES:
            content[name] = path.parent / str(value)
    return content


def _run(
    model: str,
    out: Path,
    asked: dict[str, Any],
    weights: str | None,
    device: str | None,
    threads: int | None,
    every: int,
    restart: bool,
) -> None:
    try:
        import peft  # noqa: F401, first: before anything that takes long
        import torch  # noqa: F401

        from edge.export.tune import Settings, tune
        from edge.export.tune.bundle import tune_to_bundle
        from edge.export.tune.policy import Target
        from edge.export.tune.trainer import Stopped
    except ModuleNotFoundError as e:
        raise MissingExtraError(f"Tuning needs {e.name}; install it with: pip install 'edge-lm[tune]'") from None
    aims = {name: asked.pop(name) for name in ("ratio", "unit", "candidates", "penalty") if name in asked}
    target = Target(span=_span(asked.pop("layers", None)), **aims)
    settings = Settings(target=target, **asked)
    started = time.monotonic()
    outcome = None
    with _interrupts() as stop, _training(settings.steps) as (progress, told, say):
        progress = _stopping(progress, stop)
        try:
            if out.suffix == BUNDLE:
                outcome = tune_to_bundle(
                    model, out, settings, weights=weights, device=device, threads=threads, every=every,
                    restart=restart, stop=stop, progress=progress, told=told, say=say,
                )  # fmt: skip
            else:
                tune(
                    model, out, settings, device=device, threads=threads, every=every, restart=restart,
                    stop=stop, progress=progress, told=told, say=say,
                )  # fmt: skip
        except Stopped as stopped:
            say(
                f"The training was interrupted after step {stopped.step} of {settings.steps}; the same command goes on "
                f"from there ({out}.tuning)."
            )
            raise typer.Exit(130) from None
        except KeyboardInterrupt:
            say(f"Tuning was interrupted at once; the same command goes on from what was kept in {out}.tuning.")
            raise
    took = time.monotonic() - started
    if outcome is None:
        print(f"{out}: tuned for {settings.policy} in {took:.0f} s; edge export {out} --segments N makes a bundle.")
        return
    from edge.cli.eval_skip import show

    found = outcome.policies
    title = f"{out}: {found[0].tokens:,} tokens that were not trained on"
    show(found, title, {"untuned, off": outcome.untuned, "off": outcome.tuned})
    print(f"{out}: tuned for {settings.policy} in {took:.0f} s; {out.with_suffix('')} holds the model.")


def _span(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if not found:
        raise InputError(f"--layers {text!r} is no range of layers; write it like 20-30.")
    return int(found[1]), int(found[2])


class _Interrupts:
    """Says, between steps, whether the user asked to stop. Before it was called for the first time, and when asked to
    stop again, an interruption takes effect at once."""

    def __init__(self) -> None:
        self.training = self.asked = False

    def __call__(self) -> bool:
        self.training = True
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.training:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """What hears of Ctrl-C and of being asked to end."""
    found = _Interrupts()
    before = {number: signal.signal(number, found.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopping(progress: Progress, stop: _Interrupts) -> Progress:
    """`progress`, which ends what is at work where the user asked to stop and nobody will ask: behind the training."""

    def reported(done: int, total: int, stage: str) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        progress(done, total, stage)

    return reported


@contextmanager
def _training(steps: int) -> Iterator[tuple[Progress, Callable[[Step], None], Say]]:
    """Progress as of `stages`, and a function that shows each step's loss and share of layers left out."""
    with stages() as (progress, say):
        smooth: list[float] = []

        def told(step: Step) -> None:
            smooth.append(step.loss)
            loss = sum(smooth[-SPOKEN:]) / len(smooth[-SPOKEN:])
            progress(step.number + 1, steps, "training")
            if (step.number + 1) % SPOKEN == 0:
                say(f"step {step.number + 1} of {steps}: loss {loss:.3f}, {step.skipped:.0%} of the layers left out")

        yield progress, told, say
