"""The entry point `edge`: finds the module of a command and turns every error into one sentence."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import signal
import sys
from types import FrameType

from edge.cli.arguments import Parser
from edge.errors import EdgeError, InputError
from edge.extras import extra_of
from edge.registry import Registry

COMMANDS = Registry("edge.cli", "command")
ABOUT = "Small language models on your own device: export a checkpoint once, run the bundle anywhere."

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # the disk, a file, or what one may take


def main(args: list[str] | None = None) -> int:
    """Run the command that `args` (default: the process's) name and return the exit status.

    0 all went well; 1 an error nobody foresaw; 2 one sentence says what was wrong; 130 interrupted.
    """
    _print_any_character()
    if args is None:  # this process is the command's own
        os.environ.setdefault("EDGE_HUGE_PAGES", "1")
        os.environ["PYTHONSAFEPATH"] = "1"  # should a library start a Python, it takes no code from the current folder
        args = sys.argv[1:]
    args, debug = _take_debug(args)
    if hasattr(signal, "SIGTERM") and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)  # `kill` cleans up as Ctrl-C does
    try:
        status = _dispatch(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _print_any_character() -> None:
    """Let no character end a command: where output is redirected on Windows it becomes UTF-8, as files here are,
    instead of an old code page; a question mark stands for what another encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if sys.platform == "win32" and "PYTHONIOENCODING" not in os.environ:
                stream.reconfigure(encoding="utf-8")
            if stream.errors == "strict":
                stream.reconfigure(errors="replace")


def _take_debug(args: list[str]) -> tuple[list[str], bool]:
    """`args` without `--debug`, wherever it stands before a `--`, and whether it was there."""
    end = args.index("--") if "--" in args else len(args)
    kept = [a for a in args[:end] if a != "--debug"]
    return kept + args[end:], len(kept) < end


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return 0
    if args[0] == "--version":
        from edge import __version__

        print(f"edge {__version__}")
        return 0
    name, rest = args[0], args[1:]
    if name.startswith("-"):
        raise InputError(f"There is no option {name!r}; see edge --help.")
    command = COMMANDS.find(name).load()
    parser = Parser(f"edge {name}", inspect.getdoc(command.command) or command.HELP)
    command.add_arguments(parser)
    try:
        # Options may stand between arguments; after a `--`, which argparse then drops too early, everything is one.
        given = parser.parse_args(rest) if "--" in rest else parser.parse_intermixed_args(rest)
    except SystemExit:  # --help was printed
        return 0
    return command.command(given) or 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Usage: edge COMMAND [OPTIONS]",
            "",
            ABOUT,
            "",
            "Commands:",
            *(f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()),
            "",
            "Options:",
            "  --help     Show this, or with a command its options.",
            "  --version  Show the version.",
            "  --debug    Show the traceback of an error.",
        ]
    )


def _explain(error: Exception) -> int:
    """Print one sentence about `error` and return the exit status."""
    if isinstance(error, EdgeError):
        return _say(str(error), 2)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error)):
        return _say(f"This needs {error.name}, which is not installed; run: pip install 'edge-lm[{extra}]'", 2)
    if isinstance(error, OSError) and error.errno in FULL:
        _drop_output()
        return _say(f"{error.filename or 'The output'} could not be written: {error.strerror}.", 2)
    kind = type(error).__name__
    detail = " ".join(str(error).split())
    about = f"{kind}: {detail[:200]}" if detail else kind
    return _say(f"Something went wrong that edge did not foresee ({about}); run it again with --debug.", 1)


def _say(sentence: str, status: int) -> int:
    print(f"edge: {' '.join(sentence.split())}", file=sys.stderr)
    return status


def _reader_gone() -> int:
    """The reader of our output has gone (`edge models | head -1`): say nothing, also not while Python shuts down."""
    _drop_output()
    return 1


def _drop_output() -> None:
    """Let what Python still writes to standard output when it ends go nowhere."""
    with contextlib.suppress(OSError):  # it may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
