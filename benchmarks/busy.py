"""One thread and two on a busy machine: decoding next to other programs that compute.

    python benchmarks/busy.py --bundle smollm2.edge --bundle qwen.edge
    python benchmarks/busy.py --bundle smollm2.edge --host jvm

For each bundle a process with one thread and one with two answer in turns, next to 0, 1 and 2 programs that do nothing
but count. The figures are the medians and quartiles of tokens per second, and of the ratios of two threads to one in a
round. docs/lab/kernels.md has figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

PROMPT = "Write a long story about a lighthouse keeper and the ships that pass at night."
REST_S = 0.2  # before another process answers: threads of the one before have stopped spinning by then
BUSY = (0, 1, 2)
ASKED = 128  # tokens of the prompt and of what surrounds it, at most
WARM = 3  # answers before those that count: it has loaded, and a Java machine has compiled
WORKER = "--worker"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, action="append", required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--busy", type=int, nargs="+", default=BUSY, help="programs that compute besides")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--host", choices=("python", "jvm"), default="python", help="jvm: the Kotlin runtime")
    given = parser.parse_args()
    command = [sys.executable, __file__, WORKER] if given.host == "python" else kotlin()
    for bundle in given.bundle:
        workers = [start(command, bundle, threads, given.tokens) for threads in given.threads]
        print(f"{bundle.name}: tokens/s, median (quartiles) of {given.rounds} rounds")
        for busy in given.busy:
            with beside(busy):
                rounds = [[answer(worker) for worker in workers] for _ in range(given.rounds)]
            for threads, speeds in zip(given.threads, zip(*rounds, strict=True), strict=True):
                ratios = [speed / first for speed, (first, *_) in zip(speeds, rounds, strict=True)]
                figures = f"{shown(speeds, 0)}, to the first {shown(ratios, 2)}"
                print(f"  {busy} busy, {threads} threads: {figures}", flush=True)
        for worker in workers:
            worker.communicate("")


def shown(figures: Sequence[float], digits: int) -> str:
    low, _, high = quantiles(figures, n=4)
    return f"{median(figures):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def kotlin() -> list[str]:
    """The command of the Kotlin runtime's worker."""
    sys.path.append(str(Path(__file__).parents[1] / "android_demo" / "bench"))
    from jvm import java

    return java("Busy")


def start(command: Sequence[str], bundle: Path, threads: int, tokens: int) -> subprocess.Popen[str]:
    """A process that answers once for each line, and prints tokens per second."""
    given = [str(bundle), str(threads), str(tokens), PROMPT]
    worker = subprocess.Popen([*command, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(WARM):
        answer(worker)
    return worker


def answer(worker: subprocess.Popen[str]) -> float:
    """Tokens per second of one answer."""
    assert worker.stdin is not None and worker.stdout is not None
    time.sleep(REST_S)
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def work(bundle: str, threads: str, tokens: str, prompt: str) -> None:
    """Python's worker. The Kotlin runtime's is in android_demo/bench."""
    import edge

    context = ASKED + int(tokens)
    model = edge.load(bundle, threads=int(threads), context=context, speculate="off", kind=edge.Model)
    for _ in sys.stdin:
        print(model.generate(prompt, max_tokens=int(tokens)).decode_tokens_per_s, flush=True)


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Programs that compute meanwhile."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(REST_S)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    main() if sys.argv[1:2] != [WORKER] else work(*sys.argv[2:])
