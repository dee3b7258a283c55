"""From text to text: what the encoder and the decoder are given, how the output comes, and what bad input gets."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from fake_text2text import END, FRENCH, GERMAN, LANGUAGES, START, fake_text2text

from edge.errors import InputError
from edge.manifest import Generation, TextFormat
from edge.runtime.decode.answer import collect
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.text.tokenizer import Text
from edge.runtime.text2text import Text2Text

NLLB = TextFormat([], [END], [END], LANGUAGES, "prefix", True, source="de_DE")
MBART = TextFormat([], [END], [END], LANGUAGES, "suffix", True, source="de_DE", target="fr_FR")


def test_the_bundle_says_what_stands_around_the_text_and_what_the_decoder_begins_with(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, form=TextFormat([START, 250], [END, 251], [252]))
    result = model.generate("hi you")
    assert result.text == "HI YOU" and result.finish_reason == "stop"
    assert engine.encoded == [[START, 250, *b"hi you", END, 251]] and engine.prompts == [[252]]
    assert result.prompt_tokens == len(engine.encoded[0]) == len(model.prompt_ids("hi you"))


def test_languages_stand_where_the_format_says(tmp_path: Path) -> None:
    nllb, engine = fake_text2text(tmp_path / "a", form=NLLB)
    nllb.generate("hi", Text2TextOptions(target_language="fr_FR"))
    nllb.generate("hi", Text2TextOptions(source_language="fr_CA", target_language="de_DE"))
    assert engine.encoded == [[GERMAN, *b"hi", END], [202, *b"hi", END]]
    assert engine.prompts == [[END, FRENCH], [END, GERMAN]]
    mbart, engine = fake_text2text(tmp_path / "b", form=MBART)
    mbart.generate("hi")
    assert (engine.encoded, engine.prompts) == ([[*b"hi", END, GERMAN]], [[END, FRENCH]])


@pytest.mark.parametrize("code", ["de_DE", "de-de", "DE", "de"])
def test_a_language_may_be_written_in_more_ways_than_one(tmp_path: Path, code: str) -> None:
    model, engine = fake_text2text(tmp_path, form=NLLB)
    model.generate("hi", Text2TextOptions(target_language=code))
    assert engine.prompts == [[END, GERMAN]]


@pytest.mark.parametrize(
    ("form", "options", "sentence"),
    [
        (NLLB, {}, "needs a target language, by --to or target_language; it has de_DE, fr_CA, fr_FR"),
        (NLLB, {"target_language": "klingon"}, "no target language 'klingon'; it has de_DE"),
        (NLLB, {"target_language": "fr"}, "target language 'fr' may be fr_CA or fr_FR; say which"),
        (NLLB, {"target_language": "fr_fr", "source_language": "xx"}, "no source language 'xx'"),
        (None, {"target_language": "de"}, "no choice of languages, so that it takes no target language"),
        (None, {"source_language": "de"}, "no choice of languages, so that it takes no source language"),
        (dataclasses.replace(NLLB, source_at=""), {"source_language": "de"}, "finds out the source language itself"),
    ],
)
def test_a_language_that_cannot_be_gets_a_sentence(
    tmp_path: Path, form: TextFormat | None, options: dict[str, str], sentence: str
) -> None:
    model, engine = fake_text2text(tmp_path, form=form)
    with pytest.raises(InputError, match=sentence):
        model.stream("hi", Text2TextOptions(**options))  # type: ignore[arg-type]
    assert engine.encoded == []


@pytest.mark.parametrize(("text", "sentence"), [("", "empty"), (" \n", "empty"), ("x" * 40, "41 tokens and .* to 40")])
def test_an_empty_or_too_long_text_gets_a_sentence_at_once(tmp_path: Path, text: str, sentence: str) -> None:
    model, _ = fake_text2text(tmp_path)
    for call in (model.stream, model.generate, model.candidates, model.prompt_ids):
        with pytest.raises(InputError, match=sentence):
            call(text)


def test_the_output_streams_token_by_token(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path, lambda text: "né")
    pieces = list(model.stream("hi"))
    assert [(p.text, p.token_id) for p in pieces] == [("n", 110), ("", 0xC3), ("é", 0xA9), ("", END)]
    assert pieces[-1].finish_reason == "stop" and pieces[-1].timings.ttft_ms


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"max_tokens": 3}, "HEL", "length"),
        ({"max_tokens": 6}, "HELLO", "stop"),
        ({"max_tokens": 5}, "HELLO", "length"),
        ({"stop": "LO"}, "HEL", "stop"),
        ({"stop": ["x", "EL"]}, "H", "stop"),
    ],
)
@pytest.mark.parametrize("beams", [1, 2])
def test_what_ends_the_output(tmp_path: Path, options: dict[str, object], text: str, reason: str, beams: int) -> None:
    model, _ = fake_text2text(tmp_path)
    penalty = 0.0 if beams > 1 else None
    result = model.generate("hello", Text2TextOptions(beams=beams, length_penalty=penalty, **options))  # type: ignore[arg-type]
    assert (result.text, result.finish_reason) == (text, reason)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_context_ends_the_output(tmp_path: Path, beams: int) -> None:
    model, _ = fake_text2text(tmp_path, context=4)
    result = model.generate("hello", Text2TextOptions(beams=beams))
    assert (result.text, result.finish_reason) == ("HELL", "context"), "the last token is never run"


@pytest.mark.parametrize("beams", [1, 3])
def test_an_interruption_keeps_what_was_written(tmp_path: Path, beams: int) -> None:
    model, engine = fake_text2text(tmp_path)
    options = Text2TextOptions(beams=beams, interrupted=lambda: len(engine.steps) == 3)
    result = model.generate("hello", options)
    assert (result.text, result.finish_reason) == ("HE", "interrupted")


MARIAN = TextFormat(suffix=[END], decoder_start=[START], languages=LANGUAGES, target_in_source=True)


def test_marians_target_language_stands_in_front_of_the_text(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, form=MARIAN)
    model.text.encode = lambda text: [GERMAN, *b"hi"] if text == ">>de_DE<< hi" else [*text.encode()]  # type: ignore[method-assign]
    named = [("hi", code) for code in ("de", ">>de_DE<<", "<2de>")]
    for text, code in (*named, (">>de_DE<< hi", None), (">>de_DE<< hi", "de")):
        assert model.generate(text, Text2TextOptions(target_language=code)).text == "HI"
        assert engine.encoded.pop() == [GERMAN, *b"hi", END] and engine.prompts.pop() == [START]
    for text, options, sentence in (
        ("hi", {}, "needs a target language, by --to or target_language; it has de_DE, fr_CA, fr_FR"),
        ("hi", {"target_language": "nld"}, "no target language 'nld'; it has de_DE"),
        (">>de_DE<< hi", {"target_language": "fr_FR"}, "The text asks for .*, and the target language is 'fr_FR'"),
        ("hi", {"target_language": "de", "source_language": "fr_FR"}, "finds out the source language itself"),
    ):
        with pytest.raises(InputError, match=sentence):
            model.generate(text, Text2TextOptions(**options))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no target language 'nld'"):
        model.check(Text2TextOptions(target_language="nld"))  # before there is a text


def test_a_single_target_need_not_be_asked_for(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, form=dataclasses.replace(MARIAN, languages={"de": GERMAN}))
    model.generate("hi")
    model.generate("hi", Text2TextOptions(target_language="de"))
    assert [ids[0] for ids in engine.encoded] == [ord("h"), GERMAN]


def test_settings_of_the_checkpoint_hold_where_none_are_given(tmp_path: Path) -> None:
    settings = Generation(max_length=6, num_beams=3, no_repeat_ngram_size=1, forced_bos=250, forced_eos=END)
    model, engine = fake_text2text(tmp_path, lambda text: "aab", generation=settings)
    tokens = model.generate("hi").token_ids
    assert (set(tokens[:3]), tokens[3:]) == (set(b"a?b"), [END]), "no token twice; the decoder's first two count"
    assert engine.prompts == [[START, 250]] and 3 in engine.steps
    assert model.generate("hi", Text2TextOptions(no_repeat_ngram=0)).token_ids == [*b"aab", END]
    engine.steps.clear()
    assert model.generate("hi", Text2TextOptions(beams=1, max_tokens=2, no_repeat_ngram=0)).token_ids == [97, END]
    assert set(engine.steps) == {1, 2}


def test_where_tokens_are_drawn_the_checkpoints_number_of_beams_means_nothing(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path, generation=Generation(num_beams=4))
    assert model.generate("hello", Text2TextOptions(temperature=0.5)).text


def test_forbidden_tokens_are_never_written(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path, lambda text: "abc", generation=Generation(suppress=[ord("b")]))
    assert model.generate("hi", Text2TextOptions(max_tokens=2)).text == "a?"


def test_fewest_tokens_keep_the_output_from_ending(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path, lambda text: "a")
    assert model.generate("hi", Text2TextOptions(min_tokens=3)).text == "a??"
    assert model.generate("hi").text == "a"


def test_a_repetition_penalty_counts_what_the_decoder_wrote(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path, lambda text: "aa")
    assert model.generate("hi", Text2TextOptions(repetition_penalty=3.0)).text == "a?"


def test_draws_with_a_seed_repeat(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    hot = Text2TextOptions(temperature=4.0, seed=1, max_tokens=20)
    assert model.generate("hello", hot).text == model.generate("hello", hot).text
    assert model.generate("hello", hot).text != model.generate("hello", dataclasses.replace(hot, seed=2)).text


def test_candidates_are_the_best_texts_with_falling_scores(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    options = Text2TextOptions(beams=4, n_best=3)
    candidates = model.candidates("hey", options)
    assert candidates[0].text == "HEY" == model.generate("hey", options).text
    assert len({c.text for c in candidates}) == 3 and all("?" in c.text for c in candidates[1:])
    scores = [c.score for c in candidates]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0
    assert candidates[0].token_ids == [*b"HEY", END]
    assert math.isclose(candidates[0].score, candidates[0].log_probability / 4)


@pytest.mark.parametrize(
    "options",
    [
        Text2TextOptions(),
        Text2TextOptions(max_tokens=2),
        Text2TextOptions(max_tokens=5),
        Text2TextOptions(stop=["LL"]),
        Text2TextOptions(beams=3),
        Text2TextOptions(beams=2, max_tokens=3),
        Text2TextOptions(interrupted=lambda: True),
    ],
)
def test_a_whole_output_is_what_its_pieces_are_together(tmp_path: Path, options: Text2TextOptions) -> None:
    model, _ = fake_text2text(tmp_path)
    measured = dict.fromkeys(("ttft_ms", "decode_tokens_per_s", "prefill_tokens_per_s"))
    measured |= dict.fromkeys(("peak_private_mb", "peak_rss_mb"))
    for _ in range(2):  # what the first one decided serves the second
        whole, together = model.generate("hello", options), collect(model.stream("hello", options))
        assert dataclasses.replace(whole, **measured) == dataclasses.replace(together, **measured)
        for name in measured:
            assert (getattr(whole, name) is None) == (getattr(together, name) is None), name


def test_options_that_change_are_decided_anew(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    some = [model.generate("hello", Text2TextOptions(max_tokens=n)).text for n in (2, 9, 3)]
    assert some == ["HE", "HELLO", "HEL"]


def test_a_stop_string_cuts_every_candidate(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    candidates = model.candidates("hey", Text2TextOptions(beams=2, n_best=2, stop=["E", "Y"]))
    assert candidates[0].text == "H" and not any({"E", "Y"} & set(c.text) for c in candidates)


def test_one_beam_gives_one_candidate_without_a_score(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    (candidate,) = model.candidates("hey")
    assert candidate.text == "HEY" and math.isnan(candidate.score)


def test_groups_reach_the_search(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    options = Text2TextOptions(beams=2, groups=2, diversity=6.0, n_best=2, max_tokens=3)
    assert {c.text for c in model.candidates("hey", options)} == {"HEY", "???"}


def test_beams_stream_what_is_certain(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path)
    seen = [(p.text, len(engine.steps)) for p in model.stream("hello you", Text2TextOptions(beams=2))]
    assert "".join(text for text, _ in seen) == "HELLO YOU"
    assert seen[0][1] < seen[-1][1], "the first text came before the last step"


def test_caches_are_used_again_one_for_each_text_at_a_time(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path)
    assert [model.generate(text).text for text in ("one", "two", "three")] == ["ONE", "TWO", "THREE"]
    assert len(engine.caches) == 1
    streams = [model.stream("first"), model.stream("second")]
    woven = [[next(stream).text for stream in streams] for _ in range(5)]
    assert ["".join(texts) for texts in zip(*woven, strict=True)] == ["FIRST", "SECON"]
    assert len(engine.caches) == 2


def test_a_larger_output_gets_a_larger_cache(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    model.generate("hello", Text2TextOptions(max_tokens=2))
    assert model.generate("hello", Text2TextOptions(beams=3)).text == "HELLO"


def test_tokens_of_beams_have_no_rate(tmp_path: Path) -> None:
    """Several become certain at a time, mostly all at the end."""
    model, _ = fake_text2text(tmp_path)
    for text in ("hello", "One. Two."):
        alone, beams = (model.generate(text, Text2TextOptions(beams=count)) for count in (1, 3))
        assert alone.decode_tokens_per_s is not None and alone.prefill_tokens_per_s is not None
        assert beams.decode_tokens_per_s is None and beams.prefill_tokens_per_s is None and beams.ttft_ms is not None


def test_options_of_a_decoder_serve_as_well(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    assert model.generate("hello", GenerateOptions(max_tokens=2)).text == "HE"
    assert collect(model.stream("hello", GenerateOptions(stop=["L"]))).text == "HE"
    for given in ({"regex": "a"}, {"regex": "a", "grammar_sampling": "aligned"}, {"grammar_sampling": "aligned"}):
        with pytest.raises(InputError, match="gives no answer in a form"):
            model.generate("hello", GenerateOptions(**given))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beams": 0}, "number of beams must be 1 or more, not 0"),
        ({"beams": 2, "n_best": 3}, "2 beams cannot give 3 texts"),
        ({"beams": 2, "temperature": 1.0}, "Tokens are drawn for one text at a time"),
        ({"n_best": 2, "temperature": 1.0}, "Tokens are drawn for one text at a time"),
        ({"max_tokens": 0}, "most tokens to generate must be 1 or more, not 0"),
        ({"min_tokens": -1}, "fewest tokens must be 0 or more, not -1"),
        ({"min_tokens": 3, "max_tokens": 2}, "At least 3 and at most 2 tokens"),
        ({"no_repeat_ngram": -1}, "n-gram size must be 0 or more, not -1"),
        ({"beams": 2, "early_stopping": "soon"}, "true, false or never, not 'soon'"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"stop": ""}, "stop string is empty"),
    ],
)
def test_options_that_make_no_output_get_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Text2TextOptions(**options)  # type: ignore[arg-type]


def test_more_texts_than_the_checkpoints_beams_get_a_sentence(tmp_path: Path) -> None:
    model, _ = fake_text2text(tmp_path)
    with pytest.raises(InputError, match="cannot give 2 texts"):
        model.candidates("hi", Text2TextOptions(n_best=2))


def test_a_bundle_of_another_kind_is_refused(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path)
    bundle = dataclasses.replace(model.bundle, manifest=dataclasses.replace(model.bundle.manifest, text=None))
    with pytest.raises(InputError, match="not a model from text to text"):
        Text2Text(bundle, engine, Text(bundle))  # type: ignore[arg-type]


def test_languages_are_listed(tmp_path: Path) -> None:
    assert fake_text2text(tmp_path, form=NLLB)[0].languages == ["de_DE", "fr_CA", "fr_FR"]
