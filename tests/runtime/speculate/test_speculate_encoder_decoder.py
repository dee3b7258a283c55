"""Drafts of loaded encoder-decoders: translations and transcriptions are the same, bit for bit, in fewer steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_speech import EN, PREVIOUS, START, TRANSCRIBE, Script, fake_transcriber, noise, said
from sounds import sound
from tiny_encoder_decoders import t5_bundle, whisper_bundle
from unigram_tokenizers import SENTENCES

import edge
from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime import text2text
from edge.runtime.budget import make_plan
from edge.runtime.decode.sampling import Sampler
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.speculate.drafter import Budget
from edge.runtime.speculate.planner import Planner, StepCosts
from edge.runtime.speech.transcribe import Transcriber
from edge.runtime.speech.transcribe_options import TranscribeOptions
from edge.runtime.text2text import Text2Text

TEXTS = ["input", "lookup", "blend", "trigram"]
SOUNDS = ["lookup", "blend", "trigram"]
SHAPES = {
    "greedy": {},
    "rules": {"no_repeat_ngram": 4, "repetition_penalty": 1.1},
    "drawn": {"temperature": 0.7, "seed": 3},
    "short": {"max_tokens": 11},
}


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return t5_bundle(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return whisper_bundle(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is run as it is."""
    monkeypatch.setattr(Planner, "cut", lambda planner, draft: draft)
    monkeypatch.setattr(Planner, "budget", lambda planner, most, context, forced: Budget(min(most, 5)))


@pytest.fixture
def bits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The logits of every token that a `Text2Text` chose, as its samplers are given them."""
    seen, make = list[bytes](), text2text.make_chooser

    def recording(*given: object) -> Sampler:
        choose = make(*given)  # type: ignore[arg-type]

        def sampler(logits: np.ndarray) -> int:
            seen.append(logits.tobytes())
            return choose(logits)

        return sampler

    monkeypatch.setattr(text2text, "make_chooser", recording)
    return seen


def translator(bundle: Bundle, **options: object) -> Text2Text:
    model = edge.load(bundle.root, threads=2, **options)  # type: ignore[arg-type]
    assert isinstance(model, Text2Text)
    return model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("speculate", TEXTS)
@pytest.mark.usefixtures("all_of_it")
def test_speculation_of_an_encoder_decoder_changes_no_text(
    t5: Bundle, speculate: str, shape: str, bits: list[bytes]
) -> None:
    plain, drafting = translator(t5, speculate="off", exact=True), translator(t5, speculate=speculate)
    assert drafting.engine.exact, "by default, where anything drafts"
    options, drafted, accepted = Text2TextOptions(**SHAPES[shape]), 0, 0  # type: ignore[arg-type]
    for text in SENTENCES:
        wanted, known = plain.generate(text, options), list(bits)
        bits.clear()
        got = drafting.generate(text, options)
        assert (got.token_ids, got.finish_reason) == (wanted.token_ids, wanted.finish_reason)
        assert bits == known, "nor a bit of any logits"
        bits.clear()
        assert got.speculation is not None
        drafted, accepted = drafted + got.speculation["drafted"], accepted + got.speculation["accepted"]
    assert drafted >= accepted > 0 or speculate == "input", "a random model's output is not its input"


def test_a_bundle_of_texts_drafts_nothing_by_itself_and_is_not_exact(t5: Bundle) -> None:
    for speculate in ("auto", "off"):
        model = translator(t5, speculate=speculate)
        assert model.speculation is None and not model.engine.exact
        assert model.generate(SENTENCES[0]).speculation is None


def test_beams_with_a_drafter_are_refused(t5: Bundle) -> None:
    with pytest.raises(InputError, match="The drafter lookup drafts one text at a time; leave it out, or ask for one"):
        edge.load(t5.root, speculate="lookup", beams=4)
    with pytest.raises(InputError, match="The drafter input drafts one text at a time; leave it out, or ask for one"):
        translator(t5, speculate="input").generate("hi", Text2TextOptions(beams=2))


def test_memory_is_planned_for_drafts_and_one_text(t5: Bundle) -> None:
    plain, drafting = (make_plan(t5, speculate=name).demand for name in ("off", "lookup"))
    assert (plain.width, plain.drafts) == (1, 0)
    assert drafting.width == 16 and drafting.branches == 1 and drafting.drafts > 0
    tight = make_plan(t5, make_plan(t5).footprint.peak + 2**25, speculate="lookup")
    model = translator(t5, speculate="lookup", memory="9GB")
    assert model.engine.plan is not None and model.engine.plan.demand.width == tight.demand.width == 16
    assert model.generate(SENTENCES[0]).speculation is not None


@pytest.mark.parametrize("speculate", SOUNDS)
@pytest.mark.usefixtures("all_of_it")
def test_speculation_of_a_transcription_changes_no_text(whisper: Bundle, speculate: str) -> None:
    """Nor its log probabilities; at temperature 0 and where tokens are drawn."""
    plain, drafting = (edge.load(whisper.root, speculate=name, exact=True) for name in ("off", speculate))
    assert isinstance(plain, Transcriber) and isinstance(drafting, Transcriber)
    samples = np.concatenate([sound(3, 0), np.zeros(8 * 16_000, np.float32), sound(3, 1)])
    for temperatures in ((0.0,), (0.4, 0.8)):
        options = TranscribeOptions(temperatures=temperatures, language="en", no_speech_threshold=None)
        wanted = plain.transcribe(samples, options)
        running = drafting.transcribe_stream(samples, options)
        segments = list(running)
        assert segments == wanted.segments and len(segments) > 1
        did = running.speculation
        assert did is not None and did["drafter"] == speculate
        assert did["drafted"] > 0 and did["drafted"] >= did["accepted"]


FIRST = said(0.0, " She sells sea shells by the sea shore.", 25.0, 25.0)
AGAIN = said(0.0, " The shells she sells by the sea shore are sea shells.", 9.0)


def heard(folder: Path, speculate: str, *scripts: Script, **options: object) -> tuple[list[object], int]:
    """The segments, and how many steps they took."""
    model, engine = fake_transcriber(folder, *scripts, speculate=speculate)
    return list(model.transcribe(noise(40), TranscribeOptions(**options)).segments), engine.steps  # type: ignore[arg-type]


@pytest.mark.parametrize("previous_text", [True, False])
def test_a_window_is_drafted_from_those_before(
    tmp_path: Path, previous_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)  # a fake engine's times mean nothing
    scripts = Script(FIRST), Script(AGAIN)
    wanted, plain = heard(tmp_path, "off", *scripts, previous_text=previous_text)
    found, steps = heard(tmp_path, "lookup", *scripts, previous_text=previous_text)
    assert found == wanted and steps < 0.8 * plain


def test_a_text_that_is_tried_again_is_drafted_from_the_try_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)
    unsure = Script(FIRST, sure=9.5)
    options = {"temperatures": (0.0, 0.1, 0.2), "logprob_threshold": -0.001, "no_speech_threshold": None}
    wanted, plain = heard(tmp_path, "off", unsure, **options)
    found, steps = heard(tmp_path, "lookup", unsure, **options)
    assert found == wanted and steps < 0.6 * plain


def test_beams_of_speech_with_a_drafter_are_refused(tmp_path: Path) -> None:
    model, engine = fake_transcriber(tmp_path, Script(FIRST), speculate="lookup")
    with pytest.raises(InputError, match="The drafter lookup drafts one text at a time; leave it out, or ask for one"):
        model.transcribe(noise(3), TranscribeOptions(beams=2))
    for name in ("input", "recycle", "self"):
        with pytest.raises(InputError, match=f"The drafter {name} does not serve bytes, which transcribes sound"):
            fake_transcriber(tmp_path, Script(FIRST), speculate=name)
    model.transcribe(noise(3))
    assert engine.prompts[0] == [START, EN, TRANSCRIBE] and PREVIOUS not in engine.prompts[0]
