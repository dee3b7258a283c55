"""What a model makes when it is first asked for may be asked for by several threads at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge.runtime import loaded, model, text2text
from edge.runtime.background import Background
from edge.runtime.speech import transcribe
from edge.runtime.text import unigram

BUNDLE: Any = SimpleNamespace(manifest=SimpleNamespace(text="text", generation=None, encoder=None, name="paper"))


def engine_of(make: Any, where: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine, where another thread takes it between this one's look and its taking."""
    seen: list[Any] = []

    class Meta(type):
        def __instancecheck__(cls, value: Any) -> bool:
            if type(value) is Background and not seen:
                seen.append(value)
                assert made.engine == "loaded"  # the other thread
                return True
            return type(value) is Background

    class Looked(metaclass=Meta):
        pass

    made = make(BUNDLE, Background(lambda: "loaded"), None)
    monkeypatch.setattr(where, "Background", Looked)
    return made.engine


@pytest.mark.parametrize(
    ("make", "where"),
    [(model.Model, loaded), (text2text.Text2Text, loaded), (transcribe.Transcriber, loaded)],
    ids=["decoder", "text", "speech"],
)
def test_an_engine_that_two_threads_wait_for_is_given_to_both(
    make: Any, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine_of(make, where, monkeypatch) == "loaded"


def test_a_tokenizer_that_two_threads_ask_for_is_given_to_both(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object.__new__(unigram.Unigram)
    loaded: Any = SimpleNamespace(encode=list)
    made._library = lambda: loaded
    seen: list[Any] = []

    def looked(value: Any) -> bool:
        if value is not loaded and not seen:
            seen.append(value)
            assert made._full() is loaded  # the other thread
            return True
        return callable(value)

    monkeypatch.setattr(unigram, "callable", looked, raising=False)
    assert made._full() is loaded
