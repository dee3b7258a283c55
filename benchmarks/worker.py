"""One engine's file in a process of its own, asked for one answer at a time: JSON lines in, JSON lines out.

Runs in the engine's environment, so it needs nothing but the standard library and the engine's package.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any


def memory_mb() -> dict[str, float]:
    """MiB of private memory now, which only Linux tells, and of the largest resident set so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage there begins with the memory of the process that started this one
        content = status.read_text()
        return {"private_mb": private_mb(content), "peak_rss_mb": int(content.split("VmHWM:")[1].split()[0]) / 1024}
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"private_mb": 0.0, "peak_rss_mb": used / (2**20 if sys.platform == "darwin" else 1024)}


def private_mb(status: str) -> float:
    """MiB that the system cannot take back, by a process's /proc/PID/status: memory of no file, in RAM or in swap."""
    return sum(int(status.split(f"{name}:")[1].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap")) / 1024


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log

    def answer(content: dict[str, Any]) -> None:
        content |= {"cpu_s": time.process_time(), **memory_mb()}
        print(json.dumps(content), file=answers, flush=True)

    os.environ["EDGE_HUGE_PAGES"] = "1"  # as in the processes of the command `edge`
    name, request = sys.argv[1], json.loads(sys.argv[2])
    engine = import_module(name)
    start = time.perf_counter()
    try:
        if "model" not in request:  # the package alone
            exec(engine.IMPORT)
            answer({})
            return
        loaded = engine.load(Path(request["model"]), request["threads"], request["capacity"], **request["settings"])
        answer({"load_s": time.perf_counter() - start})
        for line in sys.stdin:
            woken = time.process_time()
            method, arguments = json.loads(line)
            answer(asdict(getattr(loaded, method)(**arguments)) | {"woken_cpu_s": woken})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main()
