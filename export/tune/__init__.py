"""Tuning a decoder for a skip policy: adapters, and routers where the policy has them, learn to do with fewer layers.

A run keeps what it has done in a folder next to its result, OUT.tuning: the model's own answers where it is trained on
those, and a checkpoint. A run that was interrupted goes on from there when it is asked for again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.errors import InputError
from edge.export.drafts.prompts import built_in
from edge.export.tune.folder import LOCK, working
from edge.export.tune.settings import Settings

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.progress import Progress
    from edge.export.tune.data import Example
    from edge.export.tune.trainer import TrainingStep

ANSWERS = "answers.jsonl"
SETTINGS = "settings.json"


def tune(
    source: str,
    out: Path,
    settings: Settings,
    *,
    device: str | None = None,
    threads: int | None = None,
    every: int = 20,
    restart: bool = False,
    stop: Callable[[], bool],
    progress: Progress,
    told: Callable[[TrainingStep], None],
    say: Callable[[str], None],
) -> Path:
    """Tune a decoder for a policy and write it to the folder `out`; see the module's docstring.

    every: steps from one checkpoint to the next. restart: forget what an interrupted run left. stop, told: see
    `Trainer.run`.

    Raises:
        EdgeError: one of its subclasses, with a sentence that says what is wrong.
        Stopped: `stop` said so, and the checkpoint is written.
    """
    import torch

    from edge.export.checkpoint import open_checkpoint
    from edge.export.quantize import bfloat16
    from edge.export.tune.generate import answer_all, drawn, read_prompts
    from edge.export.tune.network import Network, fast_bf16, pick_device
    from edge.export.tune.policy import make_policy
    from edge.export.tune.result import write_result
    from edge.export.tune.trainer import Trainer

    if out.exists():
        raise InputError(f"{out} exists; choose another folder for the tuned model, or remove it.")
    place = pick_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    progress(0, 0, "opening the checkpoint")
    checkpoint = open_checkpoint(source, progress=progress, say=say, floats=True)
    if checkpoint.config.get("is_encoder_decoder"):
        raise InputError(f"{checkpoint.name} is an encoder-decoder; decoders alone can be tuned.")
    config = checkpoint.config
    policy = make_policy(settings, config["num_hidden_layers"], config["hidden_size"])
    work = out.with_name(f"{out.name}.tuning")
    if settings.precision == "bf16" and place == "cpu" and not bfloat16.runs():
        raise InputError("PyTorch's products in bfloat16 crash on this processor; choose --precision fp32, or auto.")
    with working(work, restart=restart):
        if out.exists():
            raise InputError(f"{out} was made by another run meanwhile.")
        bf16 = settings.precision == "bf16" or (settings.precision == "auto" and fast_bf16(place))
        with built_in() as file:
            prompts = settings.prompts or file
            same = identity(checkpoint, settings, settings.sources(prompts)) | {"bf16": bf16}
            _claim(work, same)
            if settings.answering:
                options = drawn(settings.answer, settings.temperature, settings.seed)
                rows = read_prompts(prompts)
                answer_all(source, rows, work / ANSWERS, options, progress=progress, threads=threads)
        _, examples = split(checkpoint, settings.sources(work / ANSWERS), settings)
        tokens = sum(len(e.tokens) for e in examples)
        say(f"{checkpoint.name}: {len(examples):,} sequences of {tokens:,} tokens, {settings.steps} steps.")
        made: dict[str, Any] = {"rank": settings.rank, "seed": settings.seed, "device": place, "bf16": bf16}
        network = Network(checkpoint, progress=progress, **made)
        trainer = Trainer(network, policy, examples, settings, work, every)
        trainer.run(stop, progress, told)
        finished = trainer.finish(stop, progress)
        last = trainer.history[-max(1, settings.steps // 10) :]
        about = {
            "policy": settings.policy,
            "skip": policy.skip(),
            "unit": settings.unit,
            "model": checkpoint.name,
            "settings": same,
            "loss": sum(step.loss for step in last) / len(last),
            "skipped": sum(step.skipped for step in last) / len(last),
            **finished,
            "history": [[step.loss, step.skipped] for step in trainer.history],
        }
        write_result(out, checkpoint, network.deltas(), policy.routers(), about, progress)
        if settings.answering:
            shutil.copyfile(work / ANSWERS, out / ANSWERS)
        shutil.rmtree(work, ignore_errors=True)
        return out


def _examples(checkpoint: Checkpoint, data: Path, settings: Settings) -> list[Example]:
    from tokenizers import Tokenizer

    from edge.export.manifest.chat_format import special_tokens
    from edge.export.tune.data import read_examples
    from edge.runtime.text.template import FIXED_DAY, ChatTemplate

    own = checkpoint.tokenizer
    tokenizer, tokens = Tokenizer.from_str(own.json), own.tokens
    template = None
    if own.chat_template is not None:
        template = ChatTemplate(own.chat_template, special_tokens(own), lambda: datetime.fromisoformat(FIXED_DAY))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_prompt(text: str) -> list[int]:
        return tokens.led(encode(text if template is None else template.render([{"role": "user", "content": text}])))

    found = read_examples(data, encode, encode_prompt, tokens.eos, settings.length, tokens.lead)
    return [dataclasses.replace(example, given=settings.given(data)) for example in found]


def split(checkpoint: Checkpoint, sources: Sequence[Path], settings: Settings) -> tuple[list[Example], list[Example]]:
    """The sequences that are held back, at most a quarter of all, and those to train on.

    Raises:
        InputError: there are too few for both.
    """
    examples = [example for source in sources for example in _examples(checkpoint, source, settings)]
    count = min(settings.validation, len(examples) // 4)
    if settings.validation and not count:
        raise InputError(
            f"{sources[0]} holds {len(examples)} sequences, of which none can be held back for figures; give more text."
        )
    order = np.random.default_rng([settings.seed, 3]).permutation(len(examples))
    return [examples[i] for i in order[:count]], [examples[i] for i in sorted(order[count:])]


def _claim(work: Path, same: dict[str, Any]) -> None:
    """Raise InputError if the folder has results of a run with other settings."""
    path = work / SETTINGS
    if not path.exists() or {file.name for file in work.iterdir()} <= {SETTINGS, LOCK}:
        path.write_text(json.dumps(same, indent=1) + "\n", encoding="utf-8")
        return
    refuse_other(work, "a run", same, json.loads(path.read_text(encoding="utf-8")))


def refuse_other(work: Path, what: str, same: dict[str, Any], have: dict[str, Any]) -> None:
    """Raise InputError if the settings `have` of an earlier run differ from these."""
    if differ := [name for name in same if same[name] != have.get(name)]:
        raise InputError(
            f"{work} holds {what} with other settings ({', '.join(differ)}); give the same ones to resume it, or start "
            "anew with --restart."
        )


def identity(checkpoint: Checkpoint, settings: Settings, sources: Sequence[Path]) -> dict[str, Any]:
    """Return the data that a run must share with an earlier one to resume it: settings by name, and a hash of the data
    and prompt files.

    Raises:
        InputError: one of them cannot be read.
    """
    content = hashlib.sha256()
    for source in sources:
        try:
            content.update(source.read_bytes())
        except OSError as e:
            raise InputError(f"{source} cannot be read: {e.strerror}.") from None
    same = dataclasses.asdict(settings)
    del same["data"], same["prompts"]
    same["span"] = None if settings.span is None else list(settings.span)
    return {"model": checkpoint.name, **same, "data": content.hexdigest()}
