"""The programs in examples/ run, each by the command that it and its README show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from sounds import tone, write_wave
from tiny_encoder_decoders import nllb_bundle, t5_bundle, whisper_bundle

from edge.bundle import Bundle

EXAMPLES = ROOT / "examples"
COMMAND = re.compile(r"python examples/(\w+\.py) ([^>#\n]+)")
SHOWN = dict(COMMAND.findall((EXAMPLES / "README.md").read_text(encoding="utf-8")))
PROMPTS = ["Why is the sky blue?", "Name a river.", "Name a lake."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pristine_tiny_bundle: Bundle) -> Path:
    """A folder with everything that the commands name: tiny bundles under the models' names, texts and a sound."""
    folder = tmp_path_factory.mktemp("examples")
    bundles = {
        "smollm2-135m-instruct": pristine_tiny_bundle,
        "opus-mt-en-de": t5_bundle(tmp_path_factory.mktemp("t5")),
        "nllb": nllb_bundle(tmp_path_factory.mktemp("nllb")),
        "whisper-base": whisper_bundle(tmp_path_factory.mktemp("whisper")),
    }
    for name, bundle in bundles.items():
        (folder / name).symlink_to(bundle.root, target_is_directory=True)
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    (folder / "report.txt").write_text("A man rides a bicycle.\n\nIt is red.\n")
    write_wave(folder / "talk.mp3", tone(1.0))
    return folder


def ran(folder: Path, program: str, arguments: str, typed: str = "", status: int = 0) -> tuple[str, str]:
    """What a program prints on standard output and error."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, *shlex.split(arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_every_program_is_short_shows_its_command_and_stands_in_the_readme() -> None:
    programs = {file.name: file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*.py")}
    assert set(SHOWN) == set(programs) and len(programs) == 5
    for name, text in programs.items():
        assert len(text.splitlines()) < 40
        assert COMMAND.findall(text)[0][0] == name and text.startswith('"""')


def test_every_client_is_short_and_stands_in_the_guide() -> None:
    guide = (ROOT / "docs/guide/serve.md").read_text(encoding="utf-8")
    for file in (EXAMPLES / "clients").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        compile(text, file.name, "exec")
        assert text.startswith('"""') and "http://127.0.0.1:8080" in text and len(text.splitlines()) < 25
        assert f"(../../examples/clients/{file.name})" in guide


def test_a_prompt_is_answered_and_timed(folder: Path) -> None:
    said, figures = ran(folder, "answer.py", SHOWN["answer.py"])
    assert said.strip() and re.fullmatch(r"\d+ ms to the first token, then \d+ tokens/s\n", figures)


def test_a_chat_goes_on_until_an_empty_line(folder: Path) -> None:
    said, _ = ran(folder, "chat.py", SHOWN["chat.py"], "Hello.\nAnd now?\n\nnot asked\n")
    assert said.count("> ") == 3
    once, _ = ran(folder, "chat.py", SHOWN["chat.py"], "Hello.\n")
    assert len(said.splitlines()) > len(once.splitlines()) > 1


def test_several_prompts_are_answered_within_a_limit_or_refused_in_a_sentence(folder: Path) -> None:
    said, figures = ran(folder, "answer_many.py", SHOWN["answer_many.py"])
    assert all(f"{prompt}\n" in said for prompt in PROMPTS) and figures.count("MB of private memory") == 3
    _, error = ran(folder, "answer_many.py", SHOWN["answer_many.py"].replace("300MB", "20MB"), status=1)
    assert "20" in error and "Traceback" not in error


def test_a_file_is_translated_line_by_line(folder: Path) -> None:
    said, _ = ran(folder, "translate_file.py", SHOWN["translate_file.py"])
    first, blank, _ = said.splitlines()
    assert first and not blank
    one, _ = ran(folder, "translate_file.py", "nllb report.txt eng_Latn deu_Latn")
    other, _ = ran(folder, "translate_file.py", "nllb report.txt eng_Latn fra_Latn")
    assert one.splitlines()[0] != other.splitlines()[0]


def test_a_recording_becomes_subtitles(folder: Path) -> None:
    said, _ = ran(folder, "subtitles.py", SHOWN["subtitles.py"])
    assert said.splitlines()[-1] == "talk.srt: 1 s of sound"
    subtitles = (folder / "talk.srt").read_text(encoding="utf-8")
    assert subtitles.startswith("1\n00:00:0") and subtitles.count(" --> ") == len(said.splitlines()) - 1
