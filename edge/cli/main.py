"""The entry point `edge`: finds the module of a command and turns every error into one sentence."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import signal
import sys
from pathlib import Path

from edge.cli import streams
from edge.cli.arguments import Parser
from edge.cli.ending import REFUSED, TERMINATED, UNFORESEEN, interrupt, status_of
from edge.cli.screen import install as install_screen
from edge.errors import EdgeError, InputError, InterruptedExport, on_one_line
from edge.extras import extra_of, install
from edge.registry import Registry

COMMANDS = Registry("edge.cli", "command")
ABOUT = "Small language models on your own device: export a checkpoint once, run the bundle anywhere."

# What other programs call our commands.
ELSEWHERE = {
    **dict.fromkeys(("chat", "generate", "transcribe", "translate", "whisper"), "run"),
    **dict.fromkeys(("remove", "delete", "uninstall"), "rm"),
    **dict.fromkeys(("convert", "create", "quantize"), "export"),
    **{"ls": "list", "ps": "list", "download": "pull", "get": "pull", "info": "show", "bench": "profile"},
}

LONG_NAME = 200  # characters of a path that a sentence shows
LONGEST = 6000  # characters of a sentence: room for a path of the longest, and the sentence around it
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # the disk, a file, or what one may take


def main(args: list[str] | None = None) -> int:
    """Run the command that `args` (default: the process's) name and return the exit status.

    `edge.cli.ending` says what each status means.
    """
    if args is None:  # this process is the command's own
        os.environ.setdefault("EDGE_HUGE_PAGES", "1")
        os.environ["PYTHONSAFEPATH"] = "1"  # should a library start a Python, it takes no code from the current folder
        args = sys.argv[1:]
    closed = streams.complete()
    streams.show_log()
    _print_any_character()
    install_screen()
    args, debug = _take_debug(args)
    if hasattr(signal, "SIGTERM") and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)  # `kill` cleans up as Ctrl-C does
    try:
        if closed:
            raise InputError("Standard output is closed; redirect it, for example to /dev/null.")
        if any("\0" in arg for arg in args):
            raise InputError("An argument has a NUL character in it, which no name and no text may have.")
        status = _dispatch(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output has gone (`edge models | head -1`): say nothing
        return UNFORESEEN
    except KeyboardInterrupt as interruption:
        status = status_of(interruption)
        return _say("Ended by SIGTERM.", status) if status == TERMINATED else status
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exception(error)
        return _explain(error)
    finally:
        streams.settle()


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
    if name in ELSEWHERE:
        raise InputError(f"There is no command {name!r}; did you mean {ELSEWHERE[name]}?")
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
            "",
            "Exit status: 0; 1 after an error that nobody foresaw; 2 where a sentence says what was wrong;",
            "130 after Ctrl-C; 143 after SIGTERM.",
        ]
    )


def _explain(error: Exception) -> int:
    """Print one sentence about `error` and return the exit status."""
    if isinstance(error, InterruptedExport):
        return _say(str(error), status_of(error.__cause__))
    if isinstance(error, EdgeError):
        return _say(str(error), REFUSED)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error)):
        return _say(f"This needs {error.name}, which is not installed; run: {install(extra)}", REFUSED)
    if isinstance(error, OSError):
        return _say(_refusal(error), REFUSED)
    if isinstance(error, MemoryError):
        return _say("Memory ran out; close other programs, or choose a smaller model, context or batch.", REFUSED)
    if isinstance(error, RecursionError):
        return _say("What edge was given is nested too deeply to be read.", REFUSED)
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # before Python 3.13 no OSError
        return _say(f"{on_one_line(error)}; name what it should lead to.", REFUSED)
    about = f"{type(error).__name__}: {on_one_line(error, 200)}"
    return _say(f"Something went wrong that edge did not foresee ({about}); run it again with --debug.", UNFORESEEN)


def _refusal(error: OSError) -> str:
    """A sentence about what the system refused."""
    reason = error.strerror or on_one_line(error)
    if error.errno in FULL:
        return f"{_named(error) or 'The output'} could not be written: {reason}."
    if name := _named(error):
        return f"{name} cannot be used: {reason}."
    if not streams.settle():
        return f"The output could not be written: {reason}."
    try:
        Path.cwd()
    except OSError:
        return "The current folder is no longer there; change to another."
    return f"The system refused what edge asked of it: {reason}."


def _named(error: OSError) -> str:
    """The file that an error is about, where it says so; the middle of a very long name is left out."""
    given = error.filename
    name = os.fsdecode(given) if isinstance(given, str | bytes) else ""
    return name if len(name) <= LONG_NAME else f"{name[: LONG_NAME // 2]}...{name[-LONG_NAME // 2 :]}"


def _say(sentence: str, status: int) -> int:
    said = " ".join(sentence.split())
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    with contextlib.suppress(OSError):  # where standard error is full, the status remains
        print(f"edge: {said}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
