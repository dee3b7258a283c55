"""Beams ask a graph of our kernels for the likeliest tokens: they are those of its logits, and so are the texts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import edge
from edge.bundle import Bundle
from edge.runtime.decode import beam
from edge.runtime.engine.want import Ranked
from edge.runtime.kernels.library import DOMAIN, VARIABLE, Kernels, find_kernels
from edge.runtime.kernels.nodes import LIKELIEST, LOGITS
from edge.runtime.largest import largest_of_each
from edge.runtime.onnx_proto import ModelProto
from edge.runtime.providers.cpu import session_options
from edge.runtime.providers.threads import share_thread_pool

FLOAT, INT64 = 1, 7  # TensorProto.DataType
WIDTHS = (9, 63, 64, 2048, 2049, 6000, 51865)


def session(kernels: Kernels, threads: int | None = None) -> ort.InferenceSession:
    """The operator by itself."""
    model: Any = ModelProto(ir_version=10)
    for domain in ("", DOMAIN):
        model.opset_import.add(domain=domain, version=21 if not domain else 1)
    graph = model.graph
    graph.name = LIKELIEST
    graph.node.add(op_type=LIKELIEST, domain=DOMAIN, input=[LOGITS, "count"], output=["logarithms", "tokens"])
    for values, names in ((graph.input, {LOGITS: FLOAT, "count": INT64}),
                          (graph.output, {"logarithms": FLOAT, "tokens": INT64})):  # fmt: skip
        for name, kind in names.items():
            values.add(name=name).type.tensor_type.elem_type = kind
    share_thread_pool(threads)
    options = session_options(None)
    options.log_severity_level = 4  # of what is refused
    options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def found(run: ort.InferenceSession, logits: NDArray[np.float32], count: int) -> Ranked:
    return Ranked(*run.run(None, {LOGITS: logits[None], "count": np.array([count], np.int64)}))


def some_logits(width: int, rows: int = 5) -> NDArray[np.float32]:
    return (np.random.default_rng(width).standard_normal((rows, width)) * 4).astype(np.float32)


def logarithms(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    less = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs: NDArray[np.float64] = less - np.log(np.exp(less).sum(axis=1, keepdims=True))
    return logs


@pytest.mark.parametrize("width", WIDTHS)
def test_they_are_found_as_sorting_finds_them(kernels: Kernels, width: int) -> None:
    logits, run = some_logits(width), session(kernels)
    logits[1] = np.round(logits[1])  # many are equal
    for count in (1, 8, min(width, 100)):
        made = found(run, logits, count)
        _, places = largest_of_each(logits, count)
        np.testing.assert_array_equal(made.tokens, places)
        expected = np.take_along_axis(logarithms(logits), places, axis=1)
        np.testing.assert_allclose(made.logarithms, expected, rtol=1e-6, atol=4e-6)


def test_where_none_are_wanted_nothing_is_made(kernels: Kernels) -> None:
    made = found(session(kernels), some_logits(100), 0)
    assert made.logarithms.shape == made.tokens.shape == (5, 0)


def test_what_is_forbidden_comes_last(kernels: Kernels) -> None:
    logits = np.full((2, 5000), -np.inf, np.float32)
    logits[0, [4000, 3]] = [1, 0]
    made = found(session(kernels), logits, 3)
    np.testing.assert_array_equal(made.tokens[0, :2], [4000, 3])
    np.testing.assert_allclose(made.logarithms[0], [-0.3132617, -1.3132617, -np.inf], rtol=1e-6)
    np.testing.assert_array_equal(made.logarithms[1], [-np.inf] * 3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("place", [0, 63, 64, 2047, 2048, 4095, 4999])
@pytest.mark.parametrize("others", [1.0, -np.inf])
def test_the_logarithms_of_a_row_with_a_logit_that_is_no_number_are_none(
    kernels: Kernels, wrong: float, place: int, others: float
) -> None:
    logits = np.full((2, 5000), others, np.float32)
    logits[0, place] = wrong
    logits[1, 7] = 2
    made = found(session(kernels), logits, 3)
    assert np.isnan(made.logarithms[0, 0])
    assert not np.isnan(made.logarithms[1]).any(), "its neighbour's are numbers"
    assert (made.tokens >= 0).all() and made.tokens[1, 0] == 7


@pytest.mark.parametrize("count", [-1, 101])
def test_more_than_there_are_is_refused(kernels: Kernels, count: int) -> None:
    with pytest.raises(Exception, match="more tokens than there are"):
        found(session(kernels), some_logits(100), count)


def bits(threads: int) -> str:
    """All that is made of some rows, alone and together, in hexadecimal."""
    kernels = find_kernels()
    assert kernels is not None
    run, made = session(kernels, threads), ""
    for width in WIDTHS:
        logits = some_logits(width)
        together, alone = found(run, logits, 8), [found(run, row[None], 8) for row in logits]
        for whole, rows in zip(together, zip(*alone, strict=True), strict=True):
            assert whole.tobytes() == np.concatenate(rows).tobytes(), "a row does not depend on those next to it"
            made += whole.tobytes().hex()
    return made


def test_they_have_the_same_bits_whatever_computes_them(kernels: Kernels) -> None:
    made = {}
    for form in ("portable", "avx2", "avx512_vnni"):
        for threads in (1, 3):
            command, environment = [sys.executable, __file__, str(threads)], {**os.environ, VARIABLE: form}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            made[form, threads] = done.stdout
    assert len({text for text in made.values() if text}) == 1


def test_a_beam_search_finds_the_texts_that_it_finds_by_logits(
    t5: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edge.load(t5.root, threads=2)
    assert isinstance(model, edge.Text2Text)
    options = edge.Text2TextOptions(beams=4, n_best=4, max_tokens=20, circles="allow")
    texts = ["one two three", "a man on a ladder", "x"]
    with monkeypatch.context() as patch:
        patch.setattr(beam, "_extend", lambda *_: pytest.fail("logits were asked for"))
        ranked = [model.candidates(text, options) for text in texts]
    monkeypatch.setattr(model.engine, "ranks", False)
    for one, other in zip(ranked, (model.candidates(text, options) for text in texts), strict=True):
        assert [each.token_ids for each in one] == [each.token_ids for each in other]
        np.testing.assert_allclose([each.score for each in one], [each.score for each in other], rtol=1e-5)


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_are_led_out_of_circles_to_the_same_texts(
    t5: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    """What leads out may be none of the likeliest."""
    model = edge.load(t5.root, threads=2)
    assert isinstance(model, edge.Text2Text)
    options = edge.Text2TextOptions(beams=beams, max_tokens=150)
    texts = [f"one {word} three" for word in ("two", "man", "ladder", "x", "aaaa bbbb", "on on on")]
    ranked = [model.generate(text, options).token_ids for text in texts]
    raw = [model.generate(text, beams=beams, max_tokens=150, circles="allow").token_ids for text in texts]
    assert ranked != raw, "there are circles"
    monkeypatch.setattr(model.engine, "ranks", False)
    assert ranked == [model.generate(text, options).token_ids for text in texts]


if __name__ == "__main__":
    if find_kernels() is not None:
        print(bits(int(sys.argv[1])))
