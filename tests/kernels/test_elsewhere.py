"""A model on our kernels gives the same logits, bit for bit, on this processor, on one with AVX2 alone, and on Arm."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from emulators import Emulator, emulators, or_skip
from places import ROOT

from edge.bundle import Bundle
from edge.runtime.kernels.library import VARIABLE, Kernels

SCRIPT = ROOT / "tests" / "kernels" / "test_model.py"  # prints hashes of logits
X86 = ("avx2.cpp", "avx_vnni.cpp", "avx512_vnni.cpp")
FLAGS = ["-O2", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno"]
ARM = {"neon_i8mm.cpp": "-march=armv8.2-a+dotprod+i8mm"}  # and of the others:
DOTPROD = "-march=armv8.2-a+dotprod"
CORES = {"neon_dotprod": "neoverse-n1", "neon_i8mm": "max"}


@pytest.fixture(scope="module")
def others() -> dict[str, Emulator]:
    return or_skip(emulators)


@pytest.fixture(scope="module")
def of_arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library for Arm, as the package has it."""
    compiler = shutil.which("aarch64-linux-gnu-g++") or shutil.which("aarch64-linux-gnu-g++-12")
    if compiler is None:
        pytest.skip("there is no C++ compiler for Arm (Debian: apt install g++-aarch64-linux-gnu)")
    folder = tmp_path_factory.mktemp("arm")
    package = shutil.copytree(
        ROOT / "kernels" / "edge_kernels", folder / "edge_kernels", ignore=shutil.ignore_patterns("*.so")
    )
    sources = [path for path in (ROOT / "kernels" / "src").glob("*.cpp") if path.name not in X86]
    objects = [folder / f"{path.stem}.o" for path in sources]
    for path, made in zip(sources, objects, strict=True):
        run(compiler, *FLAGS, ARM.get(path.name, DOTPROD), "-c", str(path), "-o", str(made))
    run(compiler, "-shared", *map(str, objects), "-o", str(package / "libedge_kernels.so"))
    return folder


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": ""})
    assert done.returncode == 0, done.stderr[-2000:]


def hashes(python: Emulator, bundle: Bundle) -> set[str]:
    done = python.run([str(SCRIPT), str(bundle.root), "1"], timeout=600)
    assert done.returncode == 0 and "onnxruntime's own kernels" not in done.stderr, done.stderr[-2000:]
    return set(done.stdout.split())


def check_gguf(python: Emulator) -> None:
    """Products of a GGUF file's types have the bits of the plain implementation."""
    found = "from edge.runtime.kernels.library import find_kernels; print(find_kernels().calls.edge_gguf_check())"
    assert python.run(["-c", found], timeout=600).stdout.split() == ["1"]


def test_a_processor_with_avx2_alone_gives_the_same_bits(
    kernels: Kernels, others: dict[str, Emulator], either: Bundle
) -> None:
    path = os.pathsep.join([str(ROOT), str(kernels.path.parents[1])])
    emulated = replace(others["haswell"], environment={**others["haswell"].environment, "PYTHONPATH": path})
    here = replace(emulated, command=emulated.command[-1:])
    wanted = hashes(here, either)
    assert len(wanted) == 1 and hashes(emulated, either) == wanted
    check_gguf(emulated)


@pytest.mark.parametrize("form", CORES)
def test_arm_gives_the_same_bits(
    kernels: Kernels, of_arm: Path, others: dict[str, Emulator], either: Bundle, form: str
) -> None:
    there, here = (os.pathsep.join([str(ROOT), str(each)]) for each in (of_arm, kernels.path.parents[1]))
    emulated = others["aarch64"]
    command = [CORES[form] if before == "-cpu" else each for before, each in pairwise(["", *emulated.command])]
    environment = {**emulated.environment, "PYTHONPATH": there, VARIABLE: form}
    on_arm = replace(emulated, command=command, environment=environment)
    on_this = replace(
        emulated,
        command=others["haswell"].command[-1:],
        environment={**emulated.environment, "PYTHONPATH": here},
    )
    assert hashes(on_arm, either) == hashes(on_this, either)
    check_gguf(on_arm)
