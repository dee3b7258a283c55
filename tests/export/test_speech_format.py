"""What an export of Whisper says of languages and tasks: those of multilingual models, none of English ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from whisper_files import IDS, LANGUAGES, TOKENS

from edge.export.checkpoint.whisper_vocabulary import read_vocabulary
from edge.export.manifest.speech_format import speech
from edge.manifest import Speech

CODES = {token.strip("<|>"): IDS[token] for token in LANGUAGES}
TASKS = {task: IDS[f"<|{task}|>"] for task in ("transcribe", "translate")}
LANG_TO_ID = {token: IDS[token] for token in LANGUAGES}


def tokenizer(root: Path) -> Any:
    """One with tokens for languages and tasks, as OpenAI's English vocabulary has them too."""
    (root / "vocabulary.json").write_text(json.dumps(TOKENS))
    return SimpleNamespace(json=read_vocabulary(root, len(TOKENS)).to_str())


def exported(root: Path, config: dict[str, Any], generation: dict[str, Any]) -> Speech:
    checkpoint = SimpleNamespace(name="tiny", config=config, generation=generation, tokenizer=tokenizer(root))
    return speech(checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({"vocab_size": 51_864}, {}),
        ({"vocab_size": 51_864}, {"lang_to_id": LANG_TO_ID}),
        ({"vocab_size": 51_865}, {"is_multilingual": False}),
        ({"vocab_size": 51_864}, {"is_multilingual": False, "lang_to_id": LANG_TO_ID}),
    ],
    ids=["its size", "its size, despite languages", "its settings", "its settings, despite languages"],
)
def test_an_english_model_has_neither_languages_nor_tasks(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any]
) -> None:
    spoken = exported(tmp_path, config, generation)
    assert (spoken.languages, spoken.tasks) == ({}, {})


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({"vocab_size": 51_865}, {}),
        ({"vocab_size": 51_866}, {"lang_to_id": LANG_TO_ID}),
        ({"vocab_size": 51_864}, {"is_multilingual": True}),
        ({"vocab_size": len(TOKENS)}, {"is_multilingual": None}),
    ],
)
def test_a_multilingual_model_has_languages_and_tasks(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any]
) -> None:
    spoken = exported(tmp_path, config, generation)
    assert (spoken.languages, spoken.tasks) == (CODES, TASKS)
