"""List the files that a run passes on its way to the first token: `python -m tools.passed_files MODEL [PROMPT]`.

A file counts as imported where it was loaded, and as passed where one of its functions ran: a class or a constant that
was only defined does not count. Processes that the run starts are left out.
"""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    passed: dict[str, None] = {}  # in their order

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # The bodies of modules and classes have no local variables of their own.
        if event == "call" and code.co_flags & inspect.CO_NEWLOCALS:
            passed.setdefault(code.co_filename)

    from edge.cli.main import main as run

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        status = run(["run", *arguments, "--max-tokens", "1"])
    finally:
        sys.setprofile(None)
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    imported = {Path(file).resolve() for file in files if file}
    ours = [path for path in dict.fromkeys(Path(name).resolve() for name in passed) if path in imported]
    here = [str(path.relative_to(ROOT)) for path in ours if _is_ours(path)]
    print(*here, sep="\n", file=sys.stderr)
    print(f"{len(here)} files passed, {sum(map(_is_ours, imported))} imported", file=sys.stderr)
    return status


def _is_ours(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in ("edge", "runtime", "export"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
