"""Run the operators of the kernels at random, under sanitizers: what fits must be accepted and give the same bits by
all instructions and threads, and what does not must be refused, without a byte read or written beyond what is there.

    python kernels/fuzz/run.py --cases 100000 --seed 1                      # addresses and undefined behaviour
    python kernels/fuzz/run.py --cases 3000 --seed 1 --sanitizer thread     # several threads and sessions at once
    python kernels/fuzz/run.py --only 123                                   # the case of a seed that was printed

Ends with 1 where something was found, and with 2 where it cannot be built. The programs stay in `kernels/build/fuzz`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
# As CMakeLists.txt has them.
FLAGS = ["-std=c++17", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", "-fno-math-errno", "-w", "-pthread"]
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx_vnni": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
    "avx512_vnni": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c"],
}
ARM = {"neon": ["-march=armv8.2-a+dotprod"], "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"]}
FORMS = X86 if platform.machine().lower() in ("x86_64", "amd64") else ARM
SANITIZERS = {
    "address": ["-O1", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
    "none": ["-O1"],
}
# Of this folder's own files: what makes inputs and compares outputs takes most of the time where it is checked, too.
HARNESS = {
    "address": ["-O2", "-DSANITIZED=1"],
    "thread": [*SANITIZERS["thread"], "-DSANITIZED=1"],
    "none": ["-O2", "-DSANITIZED=0"],
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
THREADS = 4  # with the thread sanitizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="of the cases' own seeds; default: one at random, which is printed")
    parser.add_argument("--only", type=int, metavar="SEED", help="run one case alone")
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="address")
    parser.add_argument("--library", type=Path, help="try this library, which was built before, without sanitizers")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build" / "fuzz", help="the folder for programs")
    given = parser.parse_args()
    kind = "none" if given.library else given.sanitizer
    try:
        program = build(given.build / kind, kind, given.library)
    except (OSError, RuntimeError) as e:
        print(f"The kernels cannot be fuzzed here: {e}", file=sys.stderr)
        return 2
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    command = [str(program), "--cases", str(given.cases), "--seed", str(seed)]
    if given.only:
        command += ["--only", str(given.only)]
    if kind == "thread":
        command += ["--threads", str(THREADS)]
    done = subprocess.run(command, env=OPTIONS | os.environ)
    return min(1, abs(done.returncode))


def build(folder: Path, kind: str, library: Path | None) -> Path:
    """The program, which is built where it is older than its sources. RuntimeError: it cannot be."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise RuntimeError("there is no C++ compiler (c++, g++ or clang++; or name one in CXX).")
    folder.mkdir(parents=True, exist_ok=True)
    forms = {name for names in (X86, ARM) for name in names}
    own = [] if library else [path for path in SOURCES.glob("*.cpp") if path.stem not in forms - set(FORMS)]
    sources = sorted(own) + sorted(HERE.glob("*.cpp"))
    headers = b"".join(path.read_bytes() for where in (SOURCES, HERE) for path in sorted(where.glob("*.h")))
    # Objects are named by all that they are made of.
    flags = SANITIZERS[kind]
    made = {
        path: [compiler, *FLAGS, *(HARNESS[kind] if path.parent == HERE else flags), *FORMS.get(path.stem, ()), "-c",
               str(path), "-o"]
        for path in sources
    }  # fmt: skip
    objects = {
        path: folder / f"{path.stem}.{_short(repr(command).encode() + headers + path.read_bytes())}.o"
        for path, command in made.items()
    }
    missing = [path for path in sources if not objects[path].exists()]
    if missing:
        compile_one([compiler, *flags, "-x", "c++", "-o", str(folder / "probe"), "-"], "int main() { return 0; }")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda path: compile_one([*made[path], f"{objects[path]}.part"]), missing):
            pass
    for path in missing:
        Path(f"{objects[path]}.part").replace(objects[path])
    for old in set(folder.glob("*.o")) - set(objects.values()):
        old.unlink()
    program = folder / "fuzz"
    linked = [str(path) for path in objects.values()]
    if library:
        linked += [str(library), f"-Wl,-rpath,{library.resolve().parent}"]
    compile_one([compiler, "-pthread", *flags, *linked, "-o", str(program)])
    return program


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def compile_one(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} cannot build it, or has no such sanitizer:\n{done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
