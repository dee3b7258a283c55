"""A T5 that translates, on the simulator: the tokens of the CPU over the same integers; as good as float32."""

from __future__ import annotations

from pathlib import Path

import pytest
from npu_models import NAME, needs_simulator
from places import SHARED

import edge
from edge import targets
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.targets import read_target

MODEL, DATA = SHARED / "models" / "multi30k-en-de", SHARED / "data" / "multi30k"
GREEDY = Text2TextOptions(beams=1, max_tokens=64)
pytestmark = [
    pytest.mark.slow,  # five minutes
    pytest.mark.skipif(not (MODEL.is_dir() and DATA.is_dir()), reason=f"there is no {MODEL} or no {DATA}"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = edge.export(MODEL, tmp_path_factory.mktemp("t5") / "en-de.edge", target=NAME)
    quality = read_target(made, NAME).quality
    print(quality)
    assert quality["top1_agreement"] > 0.98 and quality["kl_mean"] < 0.001
    return made.root


def translated(bundle: Path, provider: str, lines: list[str]) -> list[list[int]]:
    model = edge.load(bundle, provider=provider, speculate="off", kind=edge.Text2Text)
    return [model.generate(line, GREEDY).token_ids for line in lines]


def test_bleu_is_float32s(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu

    lines = (DATA / "test_2016_flickr.en").read_text("utf-8").splitlines()
    wanted = (DATA / "test_2016_flickr.de").read_text("utf-8").splitlines()
    plain = edge.export(MODEL, tmp_path / "float.edge", weights="fp32", check=False).root
    scores = {}
    for name, place in (("float32", plain), (NAME, bundle)):
        monkeypatch.setitem(targets.TARGETS, NAME, "cpu")  # the CPU computes the NPU's integers
        model = edge.load(place, provider="cpu", speculate="off", kind=edge.Text2Text)
        scores[name] = sacrebleu.corpus_bleu([model.generate(line, GREEDY).text for line in lines], [wanted]).score
    print(scores)
    assert abs(scores[NAME] - scores["float32"]) < 1


def test_ten_sentences_on_the_simulator(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_simulator()
    lines = (DATA / "test_2016_flickr.en").read_text("utf-8").splitlines()[:10]
    simulated = translated(bundle, "qnn", lines)
    monkeypatch.setitem(targets.TARGETS, NAME, "cpu")
    assert simulated == translated(bundle, "cpu", lines)
