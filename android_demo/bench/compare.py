"""The Kotlin runtime next to Python's, in turns on the same machine and bundle: tokens per second, memory, garbage.

    python android_demo/bench/compare.py smol.edge
    python android_demo/bench/compare.py translator.edge
    python android_demo/bench/compare.py whisper.edge --sound speech.wav
    python android_demo/bench/compare.py smol.edge --drafts --prompt "Repeat: ..."

Both answer the same prompt, translate the same sentences or transcribe the same recording, greedily and without drafts,
in a process of their own each round; the last one compares the Kotlin runtime with drafts and without. Tokens a second
are those after the first of an answer; of translations and transcriptions all time counts. Memory is private memory
after the answers, less that before onnxruntime was loaded, and without that of the Java machine itself: heap, compiler,
code and classes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jvm import HERE, java

from edge.bundle import open_bundle
from edge.runtime.speech.audio import open_audio

PROMPT = "The history of the lighthouse begins with fires that were lit on hills above a harbour. " * 6
TEXTS = """A man in a blue shirt is standing on a ladder cleaning a window.
Two young, white males are outside near many bushes.
A little girl climbs into a wooden playhouse.
Several people wait at a bus stop in the rain while a dog sleeps under the bench.
A group of musicians plays on a stage in front of a large crowd."""
ROWS = {
    "tokens_per_s": "tokens per second",
    "first_token_ms": "first token, ms",
    "private_mb": "private memory, MB",
}
PYTHON = """
import json, sys
import numpy
from pathlib import Path
def private_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
path, prompt, tokens, rounds = sys.argv[1:]
before = private_bytes()
import onnxruntime
import edge
import time
from edge.bundle import open_bundle
manifest = open_bundle(path).manifest
model = edge.load(path, speculate="off", **({"context": 1024} if manifest.encoder is None else {}))
def run():
    if manifest.encoder is None:
        model.prefixes.forget()  # the prompt is read each time
        made = model.generate(prompt, raw=True, max_tokens=int(tokens))
        return made.generated_tokens, made.decode_tokens_per_s, made.ttft_ms
    begun, count, first = time.perf_counter(), 0, None
    if manifest.speech is None:
        for text in prompt.splitlines():
            made = model.generate(text, max_tokens=int(tokens), beams=1)
            count, first = count + made.generated_tokens, first or made.ttft_ms
    else:
        for segment in model.transcribe_stream(pcm, beams=1):
            first = first or 1000 * (time.perf_counter() - begun)
            count += len(segment.tokens)
    return count, count / (time.perf_counter() - begun), first
pcm = None if manifest.speech is None else numpy.fromfile(prompt, "<f4")
runs = [run() for _ in range(int(rounds) + 1)]
print(json.dumps({
    "tokens_per_s": max(run[1] for run in runs), "first_token_ms": min(run[2] for run in runs),
    "tokens": runs[-1][0], "private_mb": (private_bytes() - before) / 1e6,
    "onnxruntime": onnxruntime.__version__,
}))
"""


def asked(bundle: Path, sound: Path | None) -> str:
    """The prompt, the texts, or a file with a recording's samples."""
    manifest = open_bundle(bundle).manifest
    if manifest.speech is None:
        return PROMPT if manifest.text is None else TEXTS
    if sound is None:
        raise SystemExit("A speech model needs a recording: --sound FILE.")
    samples = HERE / "target" / "sound.pcm"
    np.concatenate(list(open_audio(sound, manifest.speech.sample_rate).blocks)).astype("<f4").tofile(samples)
    return str(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drafts", action="store_true", help="compare drafts and none, instead of Python")
    parser.add_argument("--prompt", help="what a decoder answers; default: a built-in text")
    parser.add_argument("--sound", type=Path, help="a recording, for a speech model")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each, in turns")
    args = parser.parse_args()
    command = java("BenchKt", "-XX:+AlwaysPreTouch", "-XX:NativeMemoryTracking=summary")
    # Sentences are short: a Java machine compiles what it runs after some hundreds of steps.
    repeats = 40 if open_bundle(args.bundle).manifest.text is not None else 3
    given = [str(args.bundle), args.prompt or asked(args.bundle, args.sound), str(args.tokens), str(repeats)]
    commands = {"Kotlin": [*command, *given, "OFF"], "Python": [sys.executable, "-c", PYTHON, *given]}
    if args.drafts:
        commands = {"drafts": [*command, *given, "AUTO"], "plain": commands["Kotlin"]}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(args.rounds):
        for name, command in commands.items():
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
            if not runs[name][-1]["tokens_per_s"]:
                raise SystemExit("The model said one token and no more; give it another --prompt.")
            print(f"round {number + 1}, {name}: {runs[name][-1]['tokens_per_s']:.1f} tokens/s", file=sys.stderr)
    print(f"{'':24}" + "".join(f"{name:>10}" for name in runs) + f"{'ratio':>8}")
    versions = [runs[name][-1]["onnxruntime"] for name in runs]
    print(f"{'onnxruntime':24}{versions[0]:>10}{versions[1]:>10}")
    for key, what in ROWS.items():
        first, second = (statistics.median(run[key] for run in runs[name]) for name in runs)
        ratio = statistics.median(a[key] / b[key] for a, b in zip(*runs.values(), strict=True))
        print(f"{what:24}{first:10.1f}{second:10.1f}{ratio:8.3f}")
    last = next(iter(runs.values()))[-1]
    print(f"{'bytes allocated a token':24}{last['allocated_per_token']:10}")
    print(f"{'collections':24}{last['collections']:10} in {last['tokens']} tokens")


if __name__ == "__main__":
    main()
