"""What an export compares between a model and its tokenizer: rows for all tokens, ends, and dates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from texts import CHAT_TEMPLATE
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import edge
from edge.errors import CheckpointError
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.manifest.tokenizer import fitted
from edge.golden import read_golden
from edge.manifest import Tokens
from edge.runtime.text.tokenizer import Text

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if images %}<image>{% endif %}"
)


def checkpoint(rows: int, added: list[str], template: str | None = CHATML, ids: int = 4) -> SimpleNamespace:
    """A vocabulary of `ids` letters, and added tokens after them."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate("abcdefgh"[:ids])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in added])
    files = TokenizerFiles(tokenizer.to_str(), template, Tokens(None, [0], None, False))
    return SimpleNamespace(name="tiny", config={"vocab_size": rows}, tokenizer=files)


@pytest.mark.parametrize("images", [["<image>"], ["<image>", "<video>", "<audio>", "<end_of_image>"]])
def test_tokens_of_images_that_have_no_row_are_omitted_with_a_word(images: list[str]) -> None:
    told: list[str] = []
    written = fitted(checkpoint(6, ["<|im_start|>", "<|im_end|>", *images]), told.append)  # type: ignore[arg-type]
    found = Tokenizer.from_str(written).get_vocab()
    assert found == {"a": 0, "b": 1, "c": 2, "d": 3, "<|im_start|>": 4, "<|im_end|>": 5}
    (said,) = told
    assert f"{len(images)} more tokens than the embedding has rows (<image>" in said


def test_a_tokenizer_that_fits_is_left_as_it_is() -> None:
    given = checkpoint(7, ["<|im_start|>", "<|im_end|>", "<image>"])
    assert fitted(given, pytest.fail) == given.tokenizer.json  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (5, r"'<\|im_end\|>', which its chat template writes, has the number 5"),
        (4, r"'<\|im_start\|>', which its chat template writes, has the number 4"),
        (3, "'d', of its vocabulary, has the number 3"),
    ],
)
def test_a_token_without_a_row_that_is_in_use_is_refused(rows: int, why: str) -> None:
    with pytest.raises(CheckpointError, match=f"the embedding has {rows} rows, and the token {why}"):
        fitted(checkpoint(rows, ["<|im_start|>", "<|im_end|>", "<image>"]), print)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> tuple[edge.Bundle, list[str]]:
    """A checkpoint that names no token of its template as an end, and tells the model the date."""
    root = Path(shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("ends") / "tiny"))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        path = root / name
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            content |= {"eos_token_id": 5} if "eos_token_id" in content or name == "config.json" else {}
            content.pop("eos_token", None)
            if name == "tokenizer_config.json":
                content["chat_template"] = "{{ strftime_now('%d %b %Y') }}" + CHAT_TEMPLATE
            path.write_text(json.dumps(content), encoding="utf-8")
    (root / "chat_template.jinja").unlink(missing_ok=True)
    told: list[str] = []
    bundle = edge.export(root, root.with_name("tiny.edge"), weights="fp32", check=False, say=told.append)
    return bundle, told


def test_the_token_after_an_answer_is_an_end_of_the_bundle(exported: tuple[edge.Bundle, list[str]]) -> None:
    bundle, told = exported
    end = Text(bundle)._tokenizer.encode("<|im_end|>")
    assert bundle.manifest.tokens.eos == [5, *end]
    assert any("ends an answer with '<|im_end|>'" in said for said in told)


def test_golden_answers_are_of_a_day_that_is_recorded(exported: tuple[edge.Bundle, list[str]]) -> None:
    bundle, _ = exported
    for case in read_golden(bundle).cases:
        assert case.date == "2025-01-31"
        assert Text(bundle).decode(case.prompt_ids).startswith("31 Jan 2025")
