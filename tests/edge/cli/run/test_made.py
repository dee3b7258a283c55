"""Which of the bundles that `edge run` has made are kept, and what is never touched."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge import __version__
from edge.bundle import MANIFEST, Bundle
from edge.cli.run import made
from edge.cli.run.contents import Contents
from edge.cli.run.made import KEPT, make_room, target_of, trim
from edge.errors import ExportError
from edge.home import cache_dir
from edge.lock import locked

USES = """
import sys, time
from pathlib import Path
from edge.cli.run.made import _use
assert all([_use(Path(each)) for each in sys.argv[1:]])
print("ready", flush=True)
time.sleep(60)
"""


def bundles() -> Path:
    folder = cache_dir() / "bundles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def bundle(name: str, *, age: float = 0) -> Path:
    """A folder that looks as a bundle from outside, last used so many seconds ago."""
    folder = bundles() / name
    folder.mkdir()
    (folder / MANIFEST).write_text("{}")
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def name_of(model: str, content: int, place: int) -> str:
    return f"{model}-{content:016x}-{place:08x}.edge"


def there() -> set[str]:
    return {path.name for path in bundles().iterdir()}


@pytest.mark.parametrize("seed", range(20))
def test_the_ones_used_last_are_kept_and_always_the_new_one(seed: int) -> None:
    """Also where clocks were wrong: of a time to come, nothing is known."""
    rng = random.Random(seed)
    ages = rng.sample([-(10**8), -3600, *range(60, 10**6, 50_000)], rng.randint(KEPT, 14))
    named = {name_of("m", i, i): age for i, age in enumerate(ages)}
    for name, age in named.items():
        bundle(name, age=age)
    new = bundle(name_of("new", 99, 99), age=rng.choice([-(10**8), 0, 10**7]))
    said: list[str] = []
    trim(new, said.append)
    sure = sorted((name for name in named if named[name] >= 0), key=lambda name: named[name])
    assert new.name in there() and set(sure[: KEPT - 1]) <= there() and len(there()) == KEPT
    assert len(said) == len(named) + 1 - KEPT
    assert all("was not used for the longest time is removed" in each for each in said)


def test_what_the_same_files_held_before_goes_and_others_stay() -> None:
    old = [bundle(name_of("m", i, 7)) for i in range(3)]
    other = [bundle(name_of("m", 1, 8)), bundle(name_of("other", 50, 9)), bundle("org%2Fmodel.edge")]
    new = bundle(name_of("m", 99, 7))
    said: list[str] = []
    trim(new, said.append)
    assert there() == {path.name for path in [*other, new]}
    assert said == [f"The bundle of these files as they were before is removed: {path.name}." for path in old]
    trim(bundle("org%2Fother.edge"), said.append)
    assert len(said) == 3 and len(there()) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no open files")
def test_a_bundle_that_another_process_uses_stays() -> None:
    used, idle = bundle(name_of("m", 1, 7)), bundle(name_of("m", 2, 7))
    oldest = [bundle(name_of("x", i, i), age=1000 + i) for i in range(10, 10 + KEPT)]
    user = subprocess.Popen([sys.executable, "-c", USES, used, oldest[-1]], stdout=subprocess.PIPE)
    try:
        assert user.stdout is not None and user.stdout.readline() == b"ready\n"
        trim(bundle(name_of("m", 3, 7)), lambda sentence: None)
        assert used.exists() and oldest[-1].exists() and not idle.exists()
    finally:
        user.kill()
        user.wait()
    trim(bundle(name_of("m", 4, 7)), lambda sentence: None)
    assert not used.exists() and not oldest[-1].exists()


def test_a_bundle_that_another_process_makes_stays() -> None:
    being = bundle(name_of("m", 1, 7))
    part = bundle(f".{being.name}.123.part")
    with locked(being.with_suffix(".lock")):
        trim(bundle(name_of("m", 2, 7)), lambda sentence: None)
        assert being.exists() and part.exists()
    trim(bundle(name_of("m", 3, 7)), lambda sentence: None)
    assert there() == {name_of("m", 3, 7)}


def test_what_killed_runs_left_is_swept_and_what_is_somebodys_is_not(tmp_path: Path) -> None:
    for number, ending in enumerate(("part", "old", "gone")):
        bundle(f".{name_of('m', number, number)}.{number + 1}.{ending}")
    (bundles() / "m-1.lock").touch()
    (bundles() / f".{name_of('m', 5, 5)}.5.part").write_text("a file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "file").touch()
    (bundles() / f".{name_of('m', 6, 6)}.6.part").symlink_to(foreign)
    (bundles() / "link.lock").symlink_to(foreign / "file")
    for name in ("notes.txt", ".hidden", "..edge.1.part"):
        (bundles() / name).write_text("of the user")
    new = bundle(name_of("new", 9, 9))
    trim(new, lambda sentence: None)
    assert there() == {new.name, "notes.txt", ".hidden", "..edge.1.part", "link.lock"}
    assert (foreign / "file").exists()


HOSTILE = ["../../x.gguf", "-rf.gguf", "a b\n\x1b[31m.gguf", "%s{0}.gguf", "x" * 250 + ".gguf", "é" * 120 + ".gguf"]
HOSTILE += [".gguf", "..gguf", "a*?[b].gguf", os.fsdecode(b"\xff\xfe.gguf"), "C:.gguf", "a\\b.gguf"]


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_of_a_file_gives_a_plain_name_of_a_bundle(name: str, tmp_path: Path) -> None:
    path = (tmp_path / "deep" / "deeper" / name) if "/" in name else tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    target = target_of(path, Contents("ab" * 32, {}, True))
    assert target.parent == cache_dir() / "bundles"
    assert len(target.name) < 120 and target.name.isascii() and target.name[0] not in ".-" and "/" not in target.name
    assert made.re.fullmatch(r"[\w.-]+-(ab){8}-[0-9a-f]{8}\.edge", target.name)
    bundle(target.name)
    assert target_of(path, Contents("ab" * 32, {}, True)) == target


def test_a_moved_file_has_the_bundle_that_it_had_and_another_content_has_not(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"
    one, two = Contents("ab" * 32, {}, True), Contents("cd" * 32, {}, True)
    target = target_of(first, one)
    bundle(target.name)
    assert target_of(second, one) == target
    assert len({target, target_of(second, two), target_of(first, two)}) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other kinds of files")
@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to nothing", "pipe"])
def test_what_is_no_bundle_makes_room_and_a_links_end_stays(
    kind: str, tmp_path: Path, pristine_tiny_bundle: Bundle
) -> None:
    target = bundles() / name_of("m", 1, 1)
    if kind == "file":
        target.write_text("x")
    elif kind == "folder":
        (target / "deep").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to(pristine_tiny_bundle.root if kind == "link" else tmp_path / "none")
    assert made.made(target) is None
    make_room(target)
    assert not os.path.lexists(target)
    assert (pristine_tiny_bundle.root / MANIFEST).exists()


def test_a_bundle_of_this_version_is_used_and_stays_newest(
    pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = bundle(name_of("m", 1, 1), age=1000)
    (target / MANIFEST).write_bytes((pristine_tiny_bundle.root / MANIFEST).read_bytes())
    for file in pristine_tiny_bundle.manifest.files:
        (target / file.path).parent.mkdir(exist_ok=True)
        (target / file.path).write_bytes(pristine_tiny_bundle.path(file.path).read_bytes())
    os.utime(target, (1, 1))
    found = made.made(target)
    assert found is not None and found.manifest.producer == f"edge {__version__}"
    assert time.time() - target.stat().st_mtime < 60
    make_room(target)
    assert target.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no owners of this kind")
def test_a_bundle_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    target = bundle(name_of("m", 1, 1))
    assert made.is_own_folder(target)
    monkeypatch.setattr(os, "geteuid", lambda: target.stat().st_uid + 1)
    assert made.made(target) is None

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(made.shutil, "rmtree", refuse)
    with pytest.raises(ExportError, match="is no bundle of yours, and cannot be removed: Operation not permitted"):
        make_room(target)


@pytest.mark.parametrize(
    ("config", "two"),
    [
        ('{"quantization_config": {"quant_method": "mxfp4"}}', True),
        ('{"quantization_config": {"quant_method": "gptq"}}', False),
        ('{"quantization_config": null}', False),
        ('["mxfp4"]', False),
        ("mxfp4", False),
    ],
)
def test_a_folder_in_mxfp4_has_a_bundle_for_our_kernels_and_another_without_them(
    config: str, two: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(config)
    targets = set()
    for run in (True, False):
        monkeypatch.setattr(made, "reads_in_place", lambda run=run, **_: run)
        targets.add(target_of(tmp_path, Contents("0123456789abcdef" * 4, {}, True)))
    assert (len(targets) == 2) is two
