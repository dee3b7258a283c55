"""The script that a child process of `edge` runs: it ends with its parent, and calls one function.

`edge.children` starts it. The request comes through standard input, of which only the parent has the other end: that
closes when the parent ends, however it ends. Nothing but the standard library is imported before this is watched.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import BinaryIO

LINUX = ("linux", "android")  # what Python calls it
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def main() -> None:
    """Answer the request with (True, the function's result) or (False, the exception that it raised)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then ends this process
    request, answer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what is printed is for people
    path, call = pickle.load(request)
    _end_with_parent(request)
    _find_modules_in(path)
    try:
        work, arguments = pickle.loads(call)
        outcome = pickle.dumps((True, work(*arguments)))
    except Exception as e:
        outcome = pickle.dumps((False, _portable(e)))
    with answer:
        answer.write(outcome)


def _end_with_parent(lifeline: BinaryIO) -> None:
    if sys.platform in LINUX:  # also while code in C keeps Python's lock
        import ctypes

        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)

    def watch() -> None:
        lifeline.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _find_modules_in(path: Sequence[tuple[str, bool]]) -> None:
    """Look for modules where the parent does; where it is not sure of a folder, only if Python names it here too."""
    known = set(sys.path)
    sys.path[:] = [folder for folder, sure in path if sure or folder in known]


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; another one with its text where it cannot be sent."""
    where = "".join(traceback.format_exception(error))
    try:
        error.__cause__ = error.__context__ = None
        sent = pickle.loads(pickle.dumps(error))
        error = sent if type(sent) is type(error) and str(sent) == str(error) else RuntimeError(str(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(where)
    return error


if __name__ == "__main__":
    main()
