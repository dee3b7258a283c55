"""Other processors on this one: Debian's user-mode qemu, and an aarch64 Python with onnxruntime for it.

`python tests/emulators.py` sets them up and says what there is. With arguments it runs Python on one of them, with the
`edge` of this checkout: `python tests/emulators.py aarch64 -m edge.cli.main verify smol.edge`.

Everything is in one folder outside the repository, EDGE_TEST_EMULATORS or `~/.cache/edge-test-emulators`, which later
runs use again and which may be deleted at any time. Nothing is installed and no rights are needed: packages come by
apt's and pip's own configuration and are unpacked there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

QEMU = ["qemu-x86_64-static", "qemu-aarch64-static"]
# A processor of Intel's from 2013, with AVX2 and without VNNI or AVX-512, and the core of most phones: dot products of
# 8 bits and no more. qemu 7.2 has no AVX-512, and its `max` for Arm is five times slower.
CPUS = {"haswell": "Haswell", "aarch64": "neoverse-n1"}
ARM_PACKAGES = [
    *("libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libssl3", "libstdc++6", "libuuid1"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal", "zlib1g"),
]
ARM_PYTHON = "usr/bin/python3.11"
ARM_WHEELS = ["jinja2", "numpy", "onnxruntime", "rich", "tokenizers", "typer"]  # what edge.runtime and the command need
GLIBCS = [17, 26, 27, 28, 31, 34, 35]  # of the manylinux tags that Debian 12 can run
# onnxruntime reads what a core can do here, and crashes at import where the text is another machine's.
ARM_CORE = """processor\t: {core}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
MAKING = "-making-"
APT = """APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
"""


class Unavailable(Exception):
    """Why there is no emulator here, in a sentence."""


@dataclass(frozen=True)
class Emulator:
    """Runs Python on another processor."""

    name: str
    command: list[str]  # what stands before Python's own arguments

    def run(self, arguments: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments and with `edge` of this checkout, its output captured.

        One thread: several spin against each other where cores are emulated.
        """
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
        whole = [*self.command, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=timeout, env=environment)


def emulators() -> dict[str, Emulator]:
    """All emulators by name, set up where they are not there yet: a minute, once.

    Raises:
        Unavailable: they cannot be set up here.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable("other processors are emulated on Linux on x86-64 only")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("EDGE_TEST_EMULATORS") or cache / "edge-test-emulators").absolute()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in home.glob(f"*{MAKING}*"):  # by a set-up that was killed
            shutil.rmtree(left)
        qemu = _made(home, "qemu", _unpack_qemu, QEMU)
        wheels = [f"{name}=={version(name)}" for name in ARM_WHEELS]
        arm = _made(home, "aarch64", partial(_unpack_arm, wheels=wheels), [*ARM_PACKAGES, *wheels, ARM_CORE])
    commands = {
        "haswell": [str(qemu / QEMU[0]), "-cpu", CPUS["haswell"], sys.executable],
        "aarch64": [str(qemu / QEMU[1]), "-cpu", CPUS["aarch64"], "-L", str(arm), str(arm / ARM_PYTHON)],
    }
    return {name: Emulator(name, command) for name, command in commands.items()}


def _made(home: Path, name: str, make: Callable[[Path], None], parts: list[str]) -> Path:
    """The folder that `make` fills with `parts`; it gets its name when it is whole."""
    recipe = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    made = home / f"{name}-{recipe}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=home, prefix=f"{name}{MAKING}") as folder:
            target = Path(folder) / name
            target.mkdir()
            make(target)
            target.rename(made)
    return made


def _unpack_qemu(target: Path) -> None:
    with _packages_of("amd64", ["qemu-user-static"]) as (package,):
        _run(["dpkg", "-x", package, package.parent])
        for name in QEMU:
            shutil.move(package.parent / "usr/bin" / name, target)


def _unpack_arm(target: Path, wheels: list[str]) -> None:
    with _packages_of("arm64", ARM_PACKAGES) as packages:
        for package in packages:
            _run(["dpkg", "-x", package, target])
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in GLIBCS] + ["--platform=manylinux2014_aarch64"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary=:all:"]
    _run([*pip, "--python-version=3.11", *platforms, "--target", target / "usr/lib/python3/dist-packages", *wheels])
    (target / "proc").mkdir()
    (target / "proc/cpuinfo").write_text("".join(ARM_CORE.format(core=core) for core in range(2)))


@contextmanager
def _packages_of(architecture: str, names: list[str]) -> Iterator[list[Path]]:
    """Debian's packages, downloaded with lists of their own, so that the system's neither matter nor change."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unavailable("the emulators are Debian's packages, and there is no apt-get here")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for part in ("state/lists/partial", "cache/archives/partial", "packages"):
            (root / part).mkdir(parents=True)
        (root / "status").touch()
        (root / "apt.conf").write_text(APT.format(architecture=architecture, root=root))
        apt = {**os.environ, "APT_CONFIG": str(root / "apt.conf")}
        _run(["apt-get", "--quiet", "update"], env=apt)
        _run(["apt-get", "--quiet", "download", *names], env=apt, cwd=root / "packages")
        yield sorted((root / "packages").glob("*.deb"))


def _run(command: Sequence[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(words[:4])} ...` took more than 5 minutes") from None
    if done.returncode:
        raise Unavailable(f"`{' '.join(words[:4])} ...` failed: {done.stderr.strip()[-600:]}")


def main(arguments: list[str]) -> int:
    """The command: see the module's docstring."""
    try:
        found = emulators()
    except Unavailable as e:
        print(f"No other processors: {e}.", file=sys.stderr)
        return 1
    if not arguments:
        for name, emulator in found.items():
            print(f"{name:8} {' '.join(emulator.command)}")
        return 0
    if arguments[0] not in found:
        print(f"{arguments[0]} is unknown; choose one of {', '.join(found)}.", file=sys.stderr)
        return 2
    done = found[arguments[0]].run(arguments[1:])
    print(done.stdout, end="")
    print("".join(line for line in done.stderr.splitlines(True) if "TCG" not in line), end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
