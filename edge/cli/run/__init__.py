"""`edge run`: answer prompts, chat, turn one text into another, or transcribe, as the kind of the bundle has it.

Each kind has a module of its own, which is imported when a bundle of it was opened.
"""

from __future__ import annotations

import argparse

from edge.cli.arguments import Parser
from edge.errors import InputError

NAME = "run"
HELP = "Answer a prompt with a bundle or a model, or chat with it."


def add_arguments(parser: Parser) -> None:
    from edge.cli.run.parser import add_arguments

    add_arguments(parser)


def command(args: argparse.Namespace) -> int:
    """Answer a prompt with a bundle, or with a model, of which a bundle is made first and kept in the cache. Text is
    streamed to standard output, one line of figures goes to standard error. Without a prompt, on a terminal: a chat
    that remembers its turns; /help shows what there is. Ctrl-C stops the answer."""
    from edge.cli.run.parser import check_kind
    from edge.cli.run.source import open_source
    from edge.runtime.options import SPEECH, TEXT, kind_of

    if args.bundle is None:
        from edge.cli.models import proposal

        raise InputError(proposal())
    bundle = open_source(args.bundle)
    if bundle.manifest.embedding is not None:
        from edge.cli.answering import check_answers

        check_answers(bundle)
    kind = kind_of(bundle.manifest)
    check_kind(kind, args)
    if kind == SPEECH:
        from edge.cli.run.speech import run_speech

        return run_speech(args, bundle)
    if kind == TEXT:
        from edge.cli.run.text2text import run_text2text

        return run_text2text(args, bundle)
    from edge.cli.run.chat_model import run_decoder

    return run_decoder(args, bundle)
