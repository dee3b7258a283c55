"""`edge run` with a decoder: an answer, streamed, a file of prompts, or a chat."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edge.cli.run.parser import OUTPUT_OF_LINES, taken
from edge.cli.run.prompt import read_prompt
from edge.cli.run.terminal import INTERRUPTED, CtrlC, show_with_figures
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.answer import GenerateOptions
    from edge.runtime.model import Model


def run_decoder(given: argparse.Namespace, bundle: Bundle) -> int:
    """Answer what the arguments of `edge run` ask an opened bundle of a decoder, and return the exit status."""
    _check(given)
    with CtrlC() as interrupted:
        prompt = read_prompt(given.prompt, given.file)
        if prompt is None and (given.raw or given.json):
            raise InputError(f"A chat takes no {'--raw' if given.raw else '--json'}; give a prompt.")
        from edge.runtime.engine.variant import AUTO, OFF, LoadOptions
        from edge.runtime.load import start

        # Answers that grow side by side take no drafts, nor the graph for such that branch.
        speculate = given.speculate or (AUTO if given.output is None else OFF)
        asked = taken(given, LoadOptions) | {"beams": given.batch, "speculate": speculate}
        loading = start(bundle, LoadOptions(**asked))
        from edge.runtime.decode.answer import GenerateOptions
        from edge.runtime.model import Model

        options = GenerateOptions(**taken(given, GenerateOptions), interrupted=interrupted)
        model = loading.model()
        assert isinstance(model, Model)
        if not given.raw and model.template is None:
            print(f"{given.bundle} has no chat template, so the model gets the prompt as it is.", file=sys.stderr)
        if prompt is not None and given.output is not None:
            from edge.cli.run.lines import run_prompts

            return run_prompts(model, prompt, options, given)
        if prompt is not None:
            _answer(model, prompt, options, given)
    if prompt is None:
        from edge.cli.run.chat import chat

        chat(model, options, given.system, interrupted)
        return 0
    return INTERRUPTED if interrupted() else 0


def _check(given: argparse.Namespace) -> None:
    """Raise InputError where options of a file of prompts and others do not go together."""
    if given.batch is not None and given.output is None:
        raise InputError("--batch says how many lines of a file are answered side by side; give -f FILE and --output.")
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be 1 or more, not {given.batch}.")
    if given.output is not None and given.file is None:
        raise InputError(OUTPUT_OF_LINES)


def _answer(model: Model, prompt: str, options: GenerateOptions, given: argparse.Namespace) -> None:
    pieces = model.stream(prompt, options, system=given.system, raw=bool(given.raw))
    if not given.json:
        show_with_figures(pieces)
        return
    import dataclasses
    import json

    from edge.cli.run.placement import placement
    from edge.runtime.decode.answer import collect

    found = dataclasses.asdict(collect(pieces)) | {"placement": placement(model.engine)}
    print(json.dumps(found, ensure_ascii=False))
