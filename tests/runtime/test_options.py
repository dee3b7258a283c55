"""Options take numbers of any type, and refuse everything else in one sentence: each field with many odd values."""

from __future__ import annotations

import dataclasses
from collections import UserString
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import END, fake_model
from fake_speech import fake_transcriber
from fake_text2text import fake_text2text

import edge
from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.load_options import LoadOptions
from edge.runtime.options import Options
from edge.runtime.sizes import parse_size
from edge.runtime.speech.transcribe_options import DecodingOptions

ALL = [
    *(SamplingOptions, edge.GenerateOptions, BeamOptions, edge.Text2TextOptions),
    *(DecodingOptions, edge.TranscribeOptions, LoadOptions),
]
FIELDS = [(options, field.name) for options in ALL for field in dataclasses.fields(options)]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


ODD: list[Any] = [
    *(None, True, False, np.True_, 0, 1, -1, 10**30, 2**200, -(2**200), 10**400, 10**5000),
    *(0.0, -0.0, 0.5, 1.5, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *(np.float64(0.5), np.float32(0.5), np.float16("inf"), np.float64("nan"), np.longdouble(2), np.int64(3)),
    *(np.uint8(200), np.int64(-1), np.array(0.5), np.array([0.5, 0.25]), np.zeros((2, 2)), np.array([]), 1j),
    *(np.complex128(1), Fraction(1, 3), Fraction(10**400), Decimal("0.5"), Decimal("NaN"), Decimal("sNaN")),
    *(Decimal("1e999"), "", "0.5", "off", "auto", "abc" * 10**5, "\ud800", "\0", b"abc", bytearray(b"a")),
    *(UserString("a"), Path("a"), ...),
    *([], (), [""], ["a"], ["a", 1], [None], [0.5], [np.float64(0.0), True], [float("nan")], [[]], {}, {"a": 1}, {"a"}),
    *(range(2), iter([1]), object(), object, len, lambda: False, Unprintable(), [Unprintable()]),
]


def test_every_field_of_options_has_a_check() -> None:
    for options, name in FIELDS:
        assert issubclass(options, Options)
        assert options.__dataclass_fields__[name].metadata, f"{options.__name__}.{name} takes anything"


@pytest.mark.parametrize(("options", "name"), FIELDS)
def test_an_odd_value_is_a_plain_one_afterwards_or_gets_one_sentence(options: type[Options], name: str) -> None:
    for value in ODD:
        try:
            made = getattr(options(**{name: value}), name)
        except InputError as e:
            said = str(e)
            assert said.endswith(".") and "\n" not in said and len(said) < 300, said
            continue
        plain = made if isinstance(made, tuple) else (made,)
        assert all(type(each) in (bool, int, float, str, type(None)) or callable(each) for each in plain), (value, made)


@pytest.mark.parametrize(
    ("options", "given", "kept"),
    [
        (edge.GenerateOptions, {"temperature": np.float64(0.5)}, 0.5),
        (edge.GenerateOptions, {"temperature": 1}, 1.0),
        (edge.GenerateOptions, {"temperature": Fraction(1, 2)}, 0.5),
        (edge.GenerateOptions, {"temperature": Decimal("0.5")}, 0.5),
        (edge.GenerateOptions, {"max_tokens": np.int64(4)}, 4),
        (edge.GenerateOptions, {"max_tokens": 2**63 - 1}, 2**63 - 1),
        (edge.GenerateOptions, {"seed": np.uint64(2**63)}, 2**63),
        (edge.GenerateOptions, {"seed": 2**128 - 1}, 2**128 - 1),
        (edge.GenerateOptions, {"stop": "abc"}, ("abc",)),
        (edge.GenerateOptions, {"stop": ["a", "b"]}, ("a", "b")),
        (edge.TranscribeOptions, {"temperatures": np.array([0.0, 0.5])}, (0.0, 0.5)),
        (edge.TranscribeOptions, {"previous_text": np.False_}, False),
        (LoadOptions, {"context": np.int32(64)}, 64),
        (LoadOptions, {"memory": 3e8}, 300_000_000),
        (LoadOptions, {"exact": np.True_}, True),
    ],
)
def test_numbers_are_taken_as_users_have_them(options: type[Options], given: dict[str, Any], kept: object) -> None:
    ((name, _),) = given.items()
    found = getattr(options(**given), name)
    assert found == kept and type(found) is type(kept)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (edge.GenerateOptions, {"max_tokens": True}),
        (edge.GenerateOptions, {"max_tokens": 10**30}),
        (edge.GenerateOptions, {"seed": 2**200}),
        (edge.GenerateOptions, {"temperature": "0.5"}),
        (edge.GenerateOptions, {"temperature": np.float64("nan")}),
        (edge.GenerateOptions, {"stop": [1]}),
        (edge.GenerateOptions, {"stop": {"a": 1}}),
        (edge.GenerateOptions, {"interrupted": True}),
        (edge.Text2TextOptions, {"beams": 10**9}),
        (edge.Text2TextOptions, {"beams": 2, "early_stopping": 1}),
        (BeamOptions, {"length_penalty": 1e308}),
        (edge.TranscribeOptions, {"temperatures": 0.5}),
        (edge.TranscribeOptions, {"skip_silence": "no"}),
        (LoadOptions, {"exact": "no"}),
        (LoadOptions, {"context": "4096"}),
        (LoadOptions, {"provider": None}),
    ],
)
def test_what_would_be_misread_is_refused(options: type[Options], given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        options(**given)


@pytest.mark.parametrize("value", ["9" * 2_000_000 + "GB", "1e5", "", "-1", "MB", "\ud800", "0"])
def test_an_amount_of_memory_that_is_none_gets_one_sentence(value: str) -> None:
    with pytest.raises(InputError, match="is not an amount of memory"):
        parse_size(value)


def test_an_unknown_keyword_gets_a_sentence_with_those_there_are(tmp_path: Path, tiny_bundle: Bundle) -> None:
    model, _ = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    listener, _ = fake_transcriber(tmp_path / "speech", [])
    unknown: dict[str, Any] = {"max_token": 3}
    for ask in (
        lambda: model.generate("hi", **unknown),
        lambda: model.stream("hi", **unknown),
        lambda: model.answers(["hi"], **unknown),
        lambda: model.chat().stream("hi", **unknown),
        lambda: translator.generate("hi", **unknown),
        lambda: translator.stream("hi", **unknown),
        lambda: translator.candidates("hi", **unknown),
        lambda: listener.transcribe(np.zeros(16000, np.float32), **unknown),
        lambda: edge.load(tiny_bundle.root, **unknown),
    ):
        with pytest.raises(InputError, match="There is no option 'max_token'; there are "):
            ask()


def test_options_of_another_kind_are_refused(tmp_path: Path, tiny_bundle: Bundle) -> None:
    model, _ = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    listener, _ = fake_transcriber(tmp_path / "speech", [])
    for odd in ({}, 0, "", {"max_tokens": 3}, edge.TranscribeOptions, LoadOptions(), ()):
        given: Any = odd
        for ask in (
            lambda given: model.generate("hi", given),
            lambda given: model.chat().generate("hi", given),
            lambda given: list(model.answers(["hi"], given)),
            lambda given: translator.generate("hi", given),
            lambda given: listener.transcribe(np.zeros(16000, np.float32), given),
            lambda given: edge.load(tiny_bundle.root, edge.GenerateOptions() if given == LoadOptions() else given),
        ):
            with pytest.raises(InputError):
                ask(given)
