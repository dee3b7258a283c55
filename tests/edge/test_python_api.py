"""What `import edge` offers: lazily, completely, and as docs/reference/python-api.md shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import DOCS

import edge
from edge.bundle import Bundle

PAGE = DOCS / "reference" / "python-api.md"


def test_importing_edge_imports_nothing_else() -> None:
    script = "import sys, edge; print([m for m in sys.modules if m.startswith(('edge.', 'numpy', 'onnxruntime'))])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.parametrize("name", edge.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert callable(getattr(edge, name)) or isinstance(getattr(edge, name), type)
    assert name in dir(edge)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'fly'"):
        _ = edge.fly  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "first", ["import edge", "import edge.export.manifest.tokenizer", "from edge.export import export"]
)
def test_export_can_be_called_whatever_was_imported_first(first: str) -> None:
    script = f"{first}\nimport edge\nprint(callable(edge.export))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == "True\n", result.stderr


def documented_examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_documented_examples_of_text_and_speech_name_what_there_is() -> None:
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text

    (example,) = (each for each in documented_examples() if "whisper.edge" in each)
    compile(example, PAGE.name, "exec")
    for kind, method in re.findall(r"\b(translator|whisper|edge)\.(\w+)\(", example):
        assert hasattr({"translator": Text2Text, "whisper": Transcriber, "edge": edge}[kind], method), method


def test_the_documented_examples_run(
    tiny_bundle: Bundle, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    examples = [each for each in documented_examples() if "whisper.edge" not in each]
    assert len(examples) >= 7
    monkeypatch.chdir(tmp_path)
    tiny_bundle.root.rename("smollm2-135m-instruct.edge")
    Path("path/to").mkdir(parents=True)
    Path("path/to/checkpoint").symlink_to(tiny_checkpoint, target_is_directory=True)
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    said = re.findall(r"print\(error\)  # (.*)", PAGE.read_text(encoding="utf-8"))
    assert capsys.readouterr().out.splitlines()[-1:] == said
    options = names["options"]
    assert isinstance(options, edge.GenerateOptions) and options.max_tokens == 100


def test_the_documentation_names_every_field_of_a_result() -> None:
    from dataclasses import fields

    text = PAGE.read_text(encoding="utf-8")
    for field in fields(edge.Result):
        assert f"`{field.name}`" in text, field.name
