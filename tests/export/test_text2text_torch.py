"""Beams, greedy decoding and drafts over real graphs: token for token what transformers generates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_decoder_configs import gemma2, t5gemma2
from encoder_decoder_harness import Exported, tiny_model
from graph_harness import TinyCheckpoint, float_matrices
from places import SHARED
from transformers import BartConfig, MarianConfig, PreTrainedConfig, T5Config
from with_drafts import drafted

import edge
from edge.cli.main import main
from edge.errors import InputError
from edge.runtime.decode.beam import beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.loop import generate
from edge.runtime.decode.rules.no_repeat_ngram import NoRepeatNgrams
from edge.runtime.decode.sampling import greedy
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.load import start
from edge.runtime.speculate.input import PRIORS, Input
from edge.runtime.speculate.planner import Planner, StepCosts
from edge.runtime.speculate.speculation import Figures, Speculation
from edge.runtime.text.tokenizer import Text
from edge.runtime.text2text import Text2Text

MODEL, DATA = SHARED / "models" / "multi30k-en-de", SHARED / "data" / "multi30k"
SIZES = dict(vocab_size=97, decoder_start_token_id=2, pad_token_id=0, eos_token_id=1, bos_token_id=2)
BART = dict(
    **SIZES,
    d_model=48,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=3,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=64,
    forced_eos_token_id=None,
)
CONFIGS: dict[str, PreTrainedConfig] = {
    "t5": T5Config(**SIZES, d_model=48, d_kv=16, d_ff=64, num_layers=2, num_heads=3, tie_word_embeddings=False),
    "bart": BartConfig(**BART),
    "marian": MarianConfig(**BART),
    "t5gemma2": t5gemma2(gemma2(2, 3, 1), gemma2(2, 4, 2)),
}
SOURCES = [np.array(ids) for ids in ([5, 6, 7, 8, 1], [90, 12, 33, 4, 71, 18, 25, 60, 1], [44, 1])]
LENGTH = 16  # tokens of an output


@pytest.fixture(scope="module", params=CONFIGS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = tiny_model(CONFIGS[request.param])
    return Exported(tmp_path_factory.mktemp(request.param) / "x.edge", model, float_matrices(TinyCheckpoint(model)))


def generated(model: Any, source: np.ndarray, **settings: object) -> list[list[int]]:
    """What transformers generates behind the first token, without padding."""
    config = dict(do_sample=False, max_new_tokens=LENGTH, max_length=None, decoder_start_token_id=2, eos_token_id=1)
    out = model.generate(torch.from_numpy(source)[None], **{**config, "pad_token_id": 0, **settings})
    texts = [row[1:] for row in out.tolist()]
    return [text[: text.index(1) + 1] if 1 in text else text for text in texts]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "num_return_sequences": 4},
        {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "num_return_sequences": 2},
        {"num_beams": 5, "length_penalty": 0.3, "early_stopping": "never", "no_repeat_ngram_size": 2},
    ],
    ids=["plain", "long", "never"],
)
def test_beams_of_a_graph_are_those_of_transformers(exported: Exported, settings: dict[str, Any]) -> None:
    options = BeamOptions(
        beams=settings["num_beams"],
        length_penalty=settings.get("length_penalty", 1.0),
        early_stopping=settings.get("early_stopping", False),
        n_best=settings.get("num_return_sequences", 1),
        max_tokens=LENGTH,
    )
    processors = [NoRepeatNgrams(settings[k]) for k in ("no_repeat_ngram_size",) if k in settings]
    engine = exported.engine
    for source in SOURCES:
        assert engine.encoder is not None
        cache = new_cache(engine, 1, options, engine.encoder.encode_text(source))
        found = beam_search(engine, cache, [2], options, eos=[1], processors=processors)
        assert [text.token_ids for text in found] == generated(exported.model, source, **settings)


def test_greedy_decoding_with_and_without_drafts_is_that_of_transformers(exported: Exported) -> None:
    engine, prompt = exported.engine, np.array([2])
    costs = StepCosts(lambda: None, 16)
    speculation = Speculation(Input(), Planner(PRIORS, costs, 16))
    for source in SOURCES:
        (wanted,) = generated(exported.model, source)
        assert engine.encoder is not None
        cross = engine.encoder.encode_text(source)
        plain = generate(engine, engine.new_cache(cross=cross), prompt, greedy, chunk=1, interrupted=lambda: False)
        assert first(plain, len(wanted)) == wanted
        # A draft of the output itself, with a fault in it, so that much is accepted and some is rolled back.
        near, figures = [*wanted[:9], 96, *wanted[10:]], Figures("input")
        cache, most = engine.new_cache(cross=cross), len(wanted)
        tokens = drafted(speculation, engine, cache, [2], greedy, most=most, source=near, figures=figures)
        assert first(tokens, most) == wanted and figures.accepted > 0


def first(tokens: Any, count: int) -> list[int]:
    return [token for token, _ in zip(tokens, range(count), strict=False)]


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[Text2Text, Callable[..., str]]:
    """A translator as a bundle of float weights, and what transformers makes of the same checkpoint."""
    if not (MODEL / "model.safetensors").exists() or not DATA.exists():
        pytest.skip(f"{MODEL} is not on this machine")
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("multi30k") / "en-de.edge"
    edge.export(MODEL, folder, weights="fp32", check=False)
    loading = start(folder)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = T5ForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32).eval()

    def translate(text: str, **settings: object) -> str:
        out = model.generate(**tokenizer(text, return_tensors="pt"), do_sample=False, max_new_tokens=60, **settings)
        return str(tokenizer.decode(out[0], skip_special_tokens=True))

    return Text2Text(loading.bundle, loading.engine, Text(loading.bundle)), translate


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"beams": 4}, {"num_beams": 4}),
        (
            {"beams": 3, "length_penalty": 2.0, "no_repeat_ngram": 2, "early_stopping": "never"},
            {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "early_stopping": "never"},
        ),
    ],
    ids=["greedy", "beams", "more rules"],
)
def test_translations_are_those_of_transformers(
    translators: tuple[Text2Text, Callable[..., str]], options: dict[str, Any], settings: dict[str, Any]
) -> None:
    model, translate = translators
    lines = (DATA / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()[100:104]
    ours = [model.generate(line, Text2TextOptions(max_tokens=60, circles="allow", **options)).text for line in lines]
    assert ours == [translate(line, **settings) for line in lines]


def test_reproducible_outputs_are_the_same_with_and_without_a_draft_at_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps of one token and of several do not differ in the last bits of their logits. All drafts run, whether
    they pay on this processor or not."""
    monkeypatch.setattr("edge.runtime.speculate.planner.Planner.cut", lambda self, draft: draft)
    if not (MODEL / "model.safetensors").exists() or not DATA.exists():
        pytest.skip(f"{MODEL} is not on this machine")
    bundle = edge.export(MODEL, tmp_path / "en-de.edge", weights="int8", check=False)
    plain, model = (edge.load(bundle.root, speculate=name, exact=True) for name in ("off", "input"))
    assert isinstance(plain, Text2Text) and isinstance(model, Text2Text)
    source = (DATA / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()[:40]
    german = (DATA / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()[:40]
    options, accepted = Text2TextOptions(max_tokens=60), 0
    for line in [*source[:20], *german]:
        found = model.generate(line, options)
        assert found.token_ids == plain.generate(line, options).token_ids
        accepted += found.speculation["accepted"]  # type: ignore[index]
    assert accepted > 5
    with pytest.raises(InputError, match="one text at a time is exact"):
        plain.generate(source[0], Text2TextOptions(beams=4))


def test_the_command_prints_the_translation(
    translators: tuple[Text2Text, Callable[..., str]], capsys: pytest.CaptureFixture[str]
) -> None:
    model, translate = translators
    assert main(["run", str(model.bundle.root), "A man rides a bicycle.", "--beams", "4"]) == 0
    assert capsys.readouterr().out == translate("A man rides a bicycle.", num_beams=4) + "\n"


def test_load_gives_the_translator(translators: tuple[Text2Text, Callable[..., str]]) -> None:
    model = edge.load(translators[0].bundle.root)
    assert isinstance(model, Text2Text)
    text = "Two dogs run."
    assert model.generate(text).text == translators[1](text)
    assert model.generate(text, edge.GenerateOptions(max_tokens=1)).generated_tokens == 1
