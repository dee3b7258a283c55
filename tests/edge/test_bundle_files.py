"""What stands in the place of a bundle's files, and files that are not the bundle's: each is a sentence at once."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changes import changed

import edge
from edge.bundle import GOLDEN, MANIFEST, MOST_JSON, TOKENIZER, Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError
from edge.home import cache_dir
from edge.manifest import parse, sealed
from edge.targets import TARGETS, has_target, path_of, read_target
from edge.typed_json import read_json

unix = pytest.mark.skipif(sys.platform == "win32", reason="has other kinds of files")
FILES = [MANIFEST, GOLDEN, TOKENIZER, "weights.bin", "graphs/decoder.onnx", "recycle.bin"]


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Whoever waits for a pipe is ended."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
        signal.alarm(30)
    yield
    if hasattr(signal, "SIGALRM"):
        signal.alarm(0)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.symlink_to("nothing")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    os.mkfifo(path)


@unix
@pytest.mark.parametrize("kind", [pipe, device, folder, dangling, loop])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_without_being_read(
    tiny_bundle: Bundle, name: str, kind: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_bundle.root / name
    path.unlink()
    kind(path)
    for command in (["run", str(tiny_bundle.root), "hello"], ["verify", str(tiny_bundle.root)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(tiny_bundle.root) in said and "did not foresee" not in said


@unix
@pytest.mark.parametrize("name", [GOLDEN, "weights.bin", "recycle.bin"])
def test_a_bundle_opened_before_a_pipe_took_a_files_place_is_not_waited_for(tiny_bundle: Bundle, name: str) -> None:
    opened = open_bundle(tiny_bundle.root)
    opened.path(name).unlink()
    os.mkfifo(opened.path(name))
    for check in (opened.check_files, opened.check_files_once, lambda: opened.read(name, 1 << 20)):
        with pytest.raises(BundleError, match="it is a pipe, not a file"):
            check()


def test_a_manifest_of_gigabytes_is_not_read(paper_bundle: Bundle) -> None:
    with (paper_bundle.root / MANIFEST).open("r+b") as file:
        file.truncate(1 << 40)  # without taking room
    with pytest.raises(BundleError, match=rf"longer than {MOST_JSON[MANIFEST] >> 20} MiB"):
        open_bundle(paper_bundle.root)


@pytest.mark.parametrize(
    "name",
    ["./weights.bin", "graphs//x", "x/", "graphs/./x", "WEIGHTS.bin", "weights.bin", "edge.json", "Edge.JSON",
     "x" * 256, "y/" * 600 + "y", "\u00e4/\u212b"],
)  # fmt: skip
def test_a_file_with_an_odd_or_a_second_name_is_refused(paper_bundle: Bundle, name: str) -> None:
    raw = json.loads(paper_bundle.manifest.to_json())
    for path in ("a\u0308/\u00c5", name):
        raw["files"].append({"path": path, "size": 0, "sha256": "0" * 64})
    (paper_bundle.root / MANIFEST).write_text(sealed(raw))
    with pytest.raises(BundleError, match="files has the path") as caught:
        open_bundle(paper_bundle.root)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("sha256", ["", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_a_sum_that_is_none_is_refused(paper_bundle: Bundle, sha256: str) -> None:
    text = sealed(changed(paper_bundle.manifest.to_json(), "files.0.sha256", sha256))
    with pytest.raises(BundleError, match="the sha256 of"):
        parse(text, MANIFEST)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": [-Infinity]}', "-Infinity is no number"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "not valid JSON"),
    ],
)
def test_json_that_readers_understand_differently_is_refused(text: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_json(text, "edge.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("context", 10**4000, "'context' must be a whole number of 64 bits"),
        ("context", True, "'context' must be a whole number"),
        ("quality.top1_agreement", 10**400, "'quality.top1_agreement' must be a number"),
        ("name", "half \ud800", "'name' must be a string of whole characters"),
        ("name", "x" * 5000, "name has 5000 letters"),
        ("graphs.0.role", "decoder\ud800", "must be a string of whole characters"),
        ("quality", {"\udfff": 1.0}, "an object with valid names"),
        ("kind", "k" * 10_000, "kind is 'kkk"),
        ("tokens.eos", [5] * 100_000 + [2**63], r"'tokens.eos\[100000\]' must be a whole number of 64 bits"),
    ],
)
def test_a_value_that_no_library_takes_is_a_sentence(paper_bundle: Bundle, path: str, value: Any, message: str) -> None:
    text = json.dumps(changed(paper_bundle.manifest.to_json(), path, value))
    with pytest.raises(BundleError, match=message) as caught:
        parse("".join(text.rpartition(', "crc32"')[0]) + "}", MANIFEST)
    assert len(str(caught.value)) < 600 and str(caught.value).encode()


def test_a_number_beyond_floats_is_no_number(paper_bundle: Bundle) -> None:
    text = json.dumps(changed(paper_bundle.manifest.to_json(), "groups.0.bits", 0.25)).replace("0.25", "1e999")
    with pytest.raises(BundleError, match=r"'groups\[0\].bits' must be a number that is finite"):
        parse("".join(text.rpartition(', "crc32"')[0]) + "}", MANIFEST)


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "null", "[]", "9" * 5000, '{"weights.bin": []}', "\ud800"])
def test_a_stamp_of_any_content_vouches_for_nothing(
    paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr("edge.bundle.SETTLED_NS", -1)
    paper_bundle.check_files_once()
    (stamp,) = (cache_dir() / "checked").iterdir()
    stamp.write_text(content, errors="surrogatepass")
    path = paper_bundle.path("weights.bin")
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(BundleError, match="is damaged"):
        paper_bundle.check_files_once()


def test_a_target_that_the_manifest_does_not_list_is_none(tiny_bundle: Bundle) -> None:
    for name in ("npu-qualcomm", "cuda"):
        path = tiny_bundle.path(path_of(name))
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        opened = open_bundle(tiny_bundle.root)
        assert not has_target(opened, name)
        with pytest.raises(BundleError, match=r"does not list 'targets/.*/target\.json'"):
            read_target(opened, name)


def test_verify_names_files_that_are_not_the_bundles(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny_bundle.root)]) == 0
    assert "not in the manifest" not in capsys.readouterr().out
    shutil.copy(tiny_bundle.path(TOKENIZER), tiny_bundle.root / "graphs" / "more.onnx")
    (tiny_bundle.root / "odd\x1b[31m.txt").write_text("")
    assert main(["verify", str(tiny_bundle.root)]) == 0
    said = capsys.readouterr().out
    assert r"so nothing reads or checks it: 'graphs/more.onnx', 'odd\x1b[31m.txt'" in said


def test_only_what_the_manifest_lists_is_read() -> None:
    """`Bundle.path` joins any name: readers take `file`, or a name that `open_bundle` asks the manifest for."""
    package, asked = Path(edge.__file__).parent, {"WEIGHTS", "TOKENIZER", "GOLDEN", "MANIFEST"}
    found = []
    for folder in (package / "runtime", package / "cli"):
        for file in folder.rglob("*.py"):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                text = ast.unparse(node)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "path":
                    holder, name = ast.unparse(node.func.value), ast.unparse(node.args[0]) if node.args else ""
                    listed = name in asked or name.endswith((".routers", "graph.path")) or "graph(" in name
                    if holder.endswith("bundle") and not listed:
                        found.append(f"{file.relative_to(package)}: {text}")
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and text.count("bundle.root /"):
                    found.append(f"{file.relative_to(package)}: {text}")
    sent = {"cli/push.py: bundle.path(path)", "cli/push_app.py: bundle.path(path)"}  # of what the manifest lists
    checked = {"runtime/engine/graphs/fixed.py: self.bundle.path(file)"}  # by `targets.check_listed`
    assert set(found) == sent | checked | {"cli/push_app.py: bundle.root / MANIFEST"}


def test_a_graph_of_a_target_that_the_manifest_does_not_list_is_not_opened(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "npu-qualcomm", "cpu")
    made = edge.export(
        tiny_checkpoint, tmp_path / "npu.edge", weights="int8", target="npu-qualcomm", target_context=96, check=False
    )
    for name in read_target(made, "npu-qualcomm").files:
        raw = json.loads(made.manifest.to_json())
        raw["files"] = [file for file in raw["files"] if file["path"] != name]
        (made.root / MANIFEST).write_text(sealed(raw))
        with pytest.raises(BundleError, match=f"does not list '{name}'"):
            edge.load(made.root, provider="cpu")


@unix
@pytest.mark.parametrize("name", ["A" * 300, "/".join(["c" * 200] * 30), "x/" + "y" * 300, "z" * 300 + ".edge"])
@pytest.mark.parametrize(
    "command",
    ["run ? hello", "verify ?", "inspect ?", "profile ?", "plan ?", "eval ?", "export ? -o out.edge",
     "export tiny -o ?", "export tiny --force -o ?", "tune ?"],
)  # fmt: skip
def test_a_name_longer_than_a_file_can_have_is_one_sentence(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word if word != "?" else name for word in command.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "did not foresee" not in said and "Traceback" not in said
