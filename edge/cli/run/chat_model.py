"""`edge run` with a decoder: an answer, streamed, a file of prompts, or a chat."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edge.cli.arguments import taken
from edge.cli.ending import INTERRUPTED
from edge.cli.run.on_cluster import cluster_of, job_of
from edge.cli.run.parser import check_lines
from edge.cli.run.prompt import read_lines, read_prompt
from edge.cli.run.terminal import CtrlC, show_with_figures
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.model import Model


def run_decoder(given: argparse.Namespace, bundle: Bundle) -> int:
    """Answer what the arguments of `edge run` ask an opened bundle of a decoder, and return the exit status."""
    _check(given)
    lines = None if given.lines is None else read_lines(given.lines)
    prompt = read_prompt(given.prompt, given.file) if lines is None else None
    chats = lines is None and prompt is None
    with cluster_of(given) as cluster, CtrlC() as interrupted:
        if chats and (given.raw or given.json):
            raise InputError(f"A chat takes no {'--raw' if given.raw else '--json'}; give a prompt.")
        from edge.runtime.engine.variant import AUTO, OFF
        from edge.runtime.load import start
        from edge.runtime.load_options import LoadOptions

        # Answers that grow side by side take no drafts, nor the graph for such that branch.
        speculate = given.speculate or (AUTO if lines is None else OFF)
        asked = taken(given, LoadOptions) | {"beams": given.batch, "speculate": speculate}
        loading = start(bundle, LoadOptions(**asked))
        from edge.runtime.decode.answer import settled
        from edge.runtime.decode.generate_options import GenerateOptions
        from edge.runtime.model import Model

        options = GenerateOptions(**taken(given, GenerateOptions), interrupted=interrupted)
        if chats:
            from edge.runtime.chat import check_chat

            check_chat(options)
        settled(options, bundle.manifest, raw=bool(given.raw))  # what does not go together, before anything is read
        model = loading.model()
        assert isinstance(model, Model)
        if not given.raw and model.template is None:
            print(f"{given.bundle} has no chat template, so the model gets the prompt as it is.", file=sys.stderr)
        if lines is not None:
            from edge.cli.run.lines import run_prompts

            model.wait()
            return run_prompts(model, lines, options, given, job_of(cluster, bundle, loading.options))
        if prompt is not None:
            _answer(model, prompt, options, given)
    if chats:
        from edge.cli.run.chat import chat
        from edge.cli.run.history import history

        kept = history(given.no_history)
        chat(model, options, given.system, interrupted, history=kept, verbose=bool(given.verbose))
        return 0
    return INTERRUPTED if interrupted() else 0


def _check(given: argparse.Namespace) -> None:
    """Raise InputError where options of a file of prompts and others do not go together."""
    check_lines(given)
    if given.batch is not None and given.lines is None:
        raise InputError("--batch says how many lines of a file are answered side by side; name it with --lines FILE.")
    if given.raw and given.date is not None:
        raise InputError("--date is for the chat template, which --raw leaves out; write the date into the prompt.")
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be 1 or more, not {given.batch}.")


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
