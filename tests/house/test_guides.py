"""The commands that README and guides show: each is one that `edge` takes, and those over bundles run."""

from __future__ import annotations

import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sounds import tone, write_wave
from tiny_embedders import tiny_embedder
from tiny_encoder_decoders import t5_bundle, whisper_bundle
from tiny_rerankers import tiny_reranker

import edge
from edge.bundle import Bundle
from edge.cli.arguments import Parser
from edge.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs").glob("reference/*.md")),
]
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
BREAKS = {";", "|", "||", "&&", ">", ">>", "<", "&"}

# The bundles that guides speak of, by the tiny one that stands in for each.
BUNDLES = {
    "decoder": [
        "smol.edge",
        "smol8.edge",
        "small.edge",
        "big.edge",
        "smollm2-135m-instruct.edge",
        "a.edge",
        "b.edge",
        "BUNDLE",
    ],
    "segmented": ["MODEL.edge", "TUNED.edge", "OTHER"],
    "translator": ["en-de.edge", "corrector.edge"],
    "speech": ["whisper.edge"],
    "vectors": ["minilm.edge"],
    "ranks": ["ranks.edge"],
}
FORMS = {"person.json": '{"type": "object"}', "answer.lark": 'start: "yes" | "no"'}
TEXTS = ["FILE", "text.txt", "texts.txt", "report.txt", "prompts.txt", "sentences.txt", "in.txt"]
# What no tiny bundle here has, or a test of its own runs, or takes a device, a download or minutes.
ELSEWHERE = re.compile(
    r"--(provider|prefill-graph|torch|qa|summarize|translate|plot|drafter|from|compare)\b|--skip first|--sweep skip"
    r"|--speculate( |$)(?!off|input|lookup|blend|trigram)|^(export|tune|push|serve) "
)


def shown() -> Iterator[tuple[str, list[str]]]:
    """The page of each command in a block of code, and its words, without what a shell does with its output."""
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                if not re.search(r"(^|[;|&] *)edge [a-z]", line.strip().removeprefix("$ ")):
                    continue
                words = list[str]()
                for word in [*lexer, ";"]:
                    if word not in BREAKS:
                        words.append(word)
                        continue
                    if words[:1] == ["edge"]:
                        yield page.name, words[1:]
                    words = []


SHOWN = list(shown())
IDS = [f"{page}: {shlex.join(words)}"[:90] for page, words in SHOWN]


def test_there_are_commands_on_the_pages() -> None:
    assert len(SHOWN) > 60 and {"README.md", "chat.md", "speech.md"} <= {page for page, _ in SHOWN}


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=IDS)
def test_every_command_is_one_that_edge_takes(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_forms(tmp_path)
    monkeypatch.chdir(tmp_path)
    name, *rest = words
    parser = Parser(f"edge {name}", "")
    COMMANDS.find(name).load().add_arguments(parser)
    parser.parse_intermixed_args(rest)


def put_forms(folder: Path) -> None:
    """Write the files that answers in a given form are asked for by."""
    for name, form in FORMS.items():
        (folder / name).write_text(form)


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory, pristine_tiny_bundle: Bundle, by_layer: Bundle) -> Path:
    """A folder with everything that the pages' commands name."""
    folder, embedder = tmp_path_factory.mktemp("kitchen"), tmp_path_factory.mktemp("embedder")
    made = {
        "decoder": pristine_tiny_bundle,
        "segmented": by_layer,
        "translator": t5_bundle(tmp_path_factory.mktemp("t5")),
        "speech": whisper_bundle(tmp_path_factory.mktemp("whisper")),
        "vectors": edge.export(tiny_embedder(embedder / "tiny"), embedder / "tiny.edge", check=False),
        "ranks": edge.export(tiny_reranker(embedder / "cross"), embedder / "cross.edge", check=False),
    }
    for kind, names in BUNDLES.items():
        for name in names:
            shutil.copytree(made[kind].root, folder / name)
    for name in TEXTS:
        (folder / name).write_text("A man rides a bicycle.\nIt is red.\n")
    put_forms(folder)
    write_wave(folder / "talk.mp3", tone(1.0))
    return folder


NAMES = {name for names in BUNDLES.values() for name in names}
RUN = [(page, words) for page, words in SHOWN if NAMES & {*words} and not ELSEWHERE.search(shlex.join(words))]


@pytest.mark.parametrize(("page", "words"), RUN, ids=[f"{page}: {shlex.join(words)}"[:90] for page, words in RUN])
def test_a_command_over_a_bundle_runs(
    page: str, words: list[str], kitchen: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [re.sub(r"^\d+[MG]B$", "100GB", word) for word in words]  # whole test runs hold more than examples name
    given = ["64" if before == "--context" else word for before, word in zip(["", *given], given, strict=False)]
    if given[0] in ("run", "profile") and not NAMES.intersection(given) & {*BUNDLES["speech"]}:
        given += ["--max-tokens", "3"] if given[0] == "run" else ["--seconds", "1"]
    monkeypatch.chdir(kitchen)
    typed = b"\0\1" * 8000 if "--stdin-pcm" in words else b"Hello."
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
    assert main(given) == 0, capfd.readouterr().err


def test_most_commands_over_bundles_are_run() -> None:
    over = [words for _, words in SHOWN if words[0] in ("run", "plan", "inspect", "verify", "eval", "profile")]
    assert len([words for _, words in RUN if words in over]) > len(over) / 2
