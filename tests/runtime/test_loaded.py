"""What all loaded models share: keywords instead of options, one class for a type checker, and an end."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from tiny_encoder_decoders import t5_bundle

import edge
from edge.bundle import Bundle
from edge.errors import InputError


def test_keywords_say_what_options_say(tiny_bundle: Bundle) -> None:
    model = edge.load(tiny_bundle.root, context=64, kind=edge.Model)
    options = edge.GenerateOptions(max_tokens=5)
    asked = model.generate("the moon", options, raw=True)
    assert model.generate("the moon", max_tokens=5, raw=True).token_ids == asked.token_ids
    assert model.generate("the moon", options, max_tokens=2, raw=True).token_ids == asked.token_ids[:2]
    assert [each.token_ids for each in model.generate_all(["the moon"], max_tokens=5, raw=True, width=1)] == [
        asked.token_ids
    ]
    assert model.chat().generate("the moon", max_tokens=2).generated_tokens == 2
    with pytest.raises(InputError, match="not 0"):
        model.generate("the moon", max_tokens=0)
    with pytest.raises(InputError, match="There is no option 'max_token'"):
        model.generate("the moon", max_token=3)  # type: ignore[call-arg]


def test_keywords_of_a_translator(tmp_path: Path) -> None:
    with edge.load(t5_bundle(tmp_path).root, kind=edge.Text2Text) as model:
        asked = model.generate("the moon", edge.Text2TextOptions(max_tokens=3, beams=1))
        assert model.generate("the moon", max_tokens=3, beams=1).token_ids == asked.token_ids


def test_a_bundle_of_another_kind_is_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(InputError, match="loaded as a Model, and not as a Transcriber"):
        edge.load(tiny_bundle.root, kind=edge.Transcriber)


def test_closing_releases_engine_and_sessions(tiny_bundle: Bundle) -> None:
    """With drafts, a chat and an answer that was left in the middle: nothing keeps the weights."""
    with edge.load(tiny_bundle.root, context=64, kind=edge.Model) as model:
        model.generate("the moon", max_tokens=8, raw=True)
        begun = model.stream("the moon", raw=True)
        next(begun)
        chat = model.chat()
        chat.generate("the moon", max_tokens=2)
        left = [weakref.ref(model.engine), weakref.ref(model.engine.session)]
    del begun, chat
    gc.collect()
    assert [each() for each in left] == [None, None]
    with pytest.raises(InputError, match="was closed; load it again"):
        model.generate("the moon")
    model.close()  # twice does nothing
