"""Weights that another program cuts short or rewrites while they are open: a sentence, never a dead process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_encoder_decoders import t5_bundle, whisper_bundle

import edge
from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError, CheckpointError
from edge.runtime import mapped_file as mapped
from edge.runtime.kernels.library import OFF, VARIABLE
from edge.runtime.mapped_file import NONE, SELDOM_NS, check_all, mapped_file, reading, unchanged

CHANGED = "was changed or cut short while it was open"
CUTS = ("0", "1", "4096", "size // 2", "size - 4096", "size - 1")
RUN = """
import os, sys, threading
from pathlib import Path
import numpy as np
import edge

def cut(files):
    for file in files:
        size = file.stat().st_size
        os.truncate(file, max(0, eval(sys.argv[3])))

def answer(model):
    if hasattr(model, "transcribe"):
        return model.transcribe(np.sin(np.arange(16000, dtype=np.float32) / 9)).text
    return model.generate("one two three", max_tokens=8).text

bundle, which = Path(sys.argv[1]), sys.argv[2]
folder, pattern = (bundle, "weights.bin") if which == "weights" else (Path(os.environ["EDGE_HOME"]), "packed/*.bin")
model = edge.load(bundle)
answer(model)
files = list(folder.glob(pattern))
cut(files)
for _ in range(2):
    try:
        print("answered", answer(model))
    except edge.EdgeError as e:
        print(type(e).__name__, e)
"""


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, pristine_tiny_bundle: Bundle) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    return {"decoder": pristine_tiny_bundle, "t5": t5_bundle(folder), "whisper": whisper_bundle(folder)}


@pytest.mark.parametrize("kind", ["decoder", "t5", "whisper"])
@pytest.mark.parametrize("which", ["weights", "packed", "onnxruntimes"])
def test_weights_that_are_cut_short_between_two_answers_end_the_next_with_a_sentence(
    tmp_path: Path, bundles: dict[str, Bundle], kind: str, which: str
) -> None:
    cut = random.Random(f"{kind} {which}").choice(CUTS)
    bundle = Path(shutil.copytree(bundles[kind].root, tmp_path / "a.edge"))
    environment = {**os.environ, "EDGE_HOME": str(tmp_path / "home")}
    if which == "onnxruntimes":
        environment[VARIABLE] = OFF
    command = [sys.executable, "-c", RUN, str(bundle), "packed" if which == "packed" else "weights", cut]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if which == "packed" and not list((tmp_path / "home").glob("packed/*.bin")):
        pytest.skip("edge-lm-kernels is not installed, or this processor cannot run it")
    assert done.returncode == 0, f"{cut}: {done.returncode}\n{done.stderr}"
    answers = done.stdout.splitlines()
    assert len(answers) == 2 and all(line.startswith("BundleError ") and CHANGED in line for line in answers), cut


def test_the_command_prints_the_sentence_and_exits_with_2(tmp_path: Path, tiny_bundle: Bundle) -> None:
    script = (
        "import os, sys\nfrom edge.cli.main import main\nwrite = sys.stdout.write\n"
        "def cut(text):\n    os.truncate(sys.argv[2], 100)\n    return write(text)\n"
        "sys.stdout.write = cut\nsys.exit(main(['run', sys.argv[1], 'one two', '--max-tokens', '100']))"
    )
    weights = tiny_bundle.path(WEIGHTS)
    command = [sys.executable, "-c", script, str(tiny_bundle.root), str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"edge: {weights} {CHANGED}; copy or export the bundle again."


@pytest.mark.parametrize("seed", range(8))
def test_any_change_of_a_file_is_an_error_before_or_after_a_run(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = tmp_path / "weights.bin"
    file.write_bytes(rng.randbytes(rng.randrange(1, 50_000)))
    os.utime(file, ns=(0, 1_000_000_000))  # long ago
    held = mapped_file(file)
    run = reading([held], lambda: rng.random() < 2)
    assert run() and not held.changed
    size = file.stat().st_size
    change = rng.choice(["shorter", "longer", "rewritten", "emptied"])
    if change == "rewritten":
        with file.open("r+b") as there:
            there.seek(rng.randrange(size))
            there.write(b"!")
    else:
        wanted = {"shorter": rng.randrange(size), "longer": size + rng.randrange(1, 9), "emptied": 0}[change]
        os.truncate(file, wanted)
    time.sleep(2 * SELDOM_NS / 1e9)
    with pytest.raises(BundleError, match=CHANGED):
        run()
    with pytest.raises(BundleError, match=CHANGED), unchanged([held]):
        raise ValueError("that comes of it")


def test_a_file_that_another_replaced_by_name_is_not_changed(tmp_path: Path) -> None:
    file, other = tmp_path / "weights.bin", tmp_path / "other"
    file.write_bytes(b"a" * 100)
    held = mapped_file(file)
    other.write_bytes(b"b")
    other.replace(file)
    assert reading([held], lambda: 1)() == 1
    assert mapped_file(file) is not held, "the other file is another one"


def test_all_who_read_a_file_share_what_it_was_until_it_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"a" * 100)
    held = mapped_file(file)
    assert mapped_file(file) is held
    os.truncate(file, 50)
    assert mapped_file(file) is not held, "who opens it now reads what it is now"
    assert held.changed


def test_a_file_is_let_go_of_with_the_last_who_reads_it(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir()) if sys.platform == "linux" else set()
    for i in range(200):  # more than the library guards at a time
        file = tmp_path / f"{i}.bin"
        file.write_bytes(b"a")
        assert not mapped_file(file).changed
    if sys.platform == "linux":
        assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1


def test_a_changed_checkpoint_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"a" * 100)
    held = mapped_file(file, "run the export again", error=CheckpointError)
    check_all(CheckpointError)
    os.truncate(file, 10)
    with pytest.raises(CheckpointError, match=f"{CHANGED}; run the export again"):
        check_all(CheckpointError)
    assert held.changed


def test_a_checkpoint_that_is_cut_short_ends_its_export_with_a_sentence(tmp_path: Path, tiny_checkpoint: Path) -> None:
    source = Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))

    def cut(done: int, total: int, stage: str) -> None:
        if total:
            os.truncate(source / "model.safetensors", 1000)

    with pytest.raises(CheckpointError, match=CHANGED):
        edge.export(source, tmp_path / "tiny.edge", check=False, progress=cut)
    assert not (tmp_path / "tiny.edge").exists()


# Without the kernels' library a page that is gone ends the process while it is read.

FAULT = """
import faulthandler, mmap, os, random, sys, threading
from pathlib import Path
import numpy as np
from edge.runtime.mapped_file import NONE, mapped_file

case, seed, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
rng = random.Random(seed)
file.write_bytes(b"a" * (4096 * 300))
if case == "handler-before":
    faulthandler.enable()
held = mapped_file(file)
if case == "handler-after":
    faulthandler.enable()
if held.guard == NONE:
    sys.exit(77)
with file.open("rb") as there:
    by_python = mmap.mmap(there.fileno(), 0, access=mmap.ACCESS_READ)
by_numpy = np.memmap(file, np.uint8, "r")
copy = np.memmap(file, np.uint8, "c")
left = 4096 * rng.randrange(300)
read = file
if case == "other-file":
    read = file.with_name("other.bin")
    read.write_bytes(b"a" * 4096 * 300)
    by_numpy = np.memmap(read, np.uint8, "r")
os.truncate(read, left)
sums = []
readers = [lambda: by_python[:].count(b"a")]
readers += [lambda: int(np.count_nonzero(by_numpy)), lambda: copy[:].tobytes().count(b"a")]
threads = [threading.Thread(target=lambda r=r: sums.append(r())) for r in readers * 3]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os.truncate(file, 4096 * 300)
os.utime(file, ns=(0, 0))
print(set(sums) == {left}, held.changed)
"""


def fault(case: str, seed: int, file: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own that reads what is gone."""
    done = subprocess.run(
        [sys.executable, "-c", FAULT, case, str(seed), str(file)], capture_output=True, text=True, timeout=60
    )
    if done.returncode == 77:
        pytest.skip("edge-lm-kernels is not installed, or is older, or this is no Linux")
    return done


@pytest.mark.parametrize("case", ["plain", "handler-before", "handler-after"])
@pytest.mark.parametrize("seed", range(3))
def test_pages_that_are_gone_read_as_zeros_in_every_mapping_and_thread(tmp_path: Path, case: str, seed: int) -> None:
    done = fault(case, seed, tmp_path / "weights.bin")
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


def test_a_file_that_nobody_guards_still_ends_the_process(tmp_path: Path) -> None:
    done = fault("other-file", 0, tmp_path / "weights.bin")
    assert done.returncode == -signal.SIGBUS


def test_without_the_library_files_are_compared_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_library", lambda: None)
    file = tmp_path / "weights.bin"
    file.write_bytes(b"a" * 100)
    held = mapped_file(file)
    assert held.guard == NONE
    ran: list[int] = []
    run = reading([held], lambda: ran.append(1))
    run()
    os.truncate(file, 10)
    with pytest.raises(BundleError, match=CHANGED):
        run()
    assert ran == [1], "what could end the process did not run"
