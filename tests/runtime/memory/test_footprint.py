"""What a bundle takes, computed from its manifest, and what a process that runs it really had."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paper_bundles import BLOCKWISE, EMBEDDING, HEAD, MATRICES, NORM, encoder_decoder

import edge
from edge.bundle import Bundle
from edge.errors import BundleError
from edge.manifest import Graph, State, TensorGroup
from edge.runtime.limits import LASTING
from edge.runtime.memory.footprint import FLOAT, IMPORTED, MIB, SLACK, Demand, Footprint, MemoryModel
from edge.runtime.providers import instructions


def with_groups(bundle: Bundle, *groups: TensorGroup) -> Bundle:
    return dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, groups=list(groups)))


def running(bundle: Bundle, **changes: int) -> dict[str, int]:
    demand = dataclasses.replace(Demand(context=200, chunk=64), **changes)
    return MemoryModel(bundle).footprint(demand).running


def test_both_tides_have_the_same_kinds_and_the_higher_one_is_the_peak() -> None:
    tide = Footprint({"a": 5, "b": 0}, {"a": 2, "b": 2})
    assert (tide.peak, tide.kinds) == (5, {"a": 5, "b": 0})
    assert Footprint({"a": 5, "b": 0}, {"a": 2, "b": 4}).kinds == {"a": 2, "b": 4}


def test_kinds_are_the_same_at_both_tides(paper_bundle: Bundle) -> None:
    footprint = MemoryModel(paper_bundle).footprint(Demand(100, 16))
    assert list(footprint.loading) == list(footprint.running)


def test_the_cache_counts_the_rows_that_are_written(paper_bundle: Bundle) -> None:
    row = paper_bundle.manifest.kv.bytes_per_token
    assert running(paper_bundle)["KV cache"] == 200 * row
    assert running(paper_bundle, branches=3, width=3)["KV cache"] == 600 * row


@pytest.mark.parametrize(
    ("group", "packed"),
    [
        (MATRICES, 36_000 + 4 * 64_000 // 64),  # the kernel adds the sum of each block
        (dataclasses.replace(MATRICES, bits=32.0, block_size=0, bytes=256_000, method="float32"), 256_000),
        (dataclasses.replace(MATRICES, bits=16.0, block_size=0, bytes=128_000, method="float16"), 256_000),
        (dataclasses.replace(MATRICES, bits=8.0, block_size=64, bytes=68_000, method="rows"), 68_000),
    ],
    ids=["blocks", "float32", "float16", "rows"],
)
@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_kernels_keep_a_packed_copy(paper_bundle: Bundle, group: TensorGroup, packed: int) -> None:
    assert running(with_groups(paper_bundle, group, NORM))["packed weights"] == packed


def test_weights_that_our_kernels_map_do_not_count(
    paper_bundle: Bundle, onnxruntimes_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dataclasses.replace(MATRICES, name="attention", bits=8.0, block_size=64, bytes=68_000, method="rows")
    bundle = with_groups(paper_bundle, MATRICES, rows, NORM)
    without = running(bundle)
    monkeypatch.setattr("edge.runtime.memory.footprint.map_weights", lambda: True)
    assert running(bundle)["packed weights"] == 68_000  # those in blocks lie in files
    assert sum(without.values()) - sum(running(bundle).values()) == 36_000 + 4 * 64_000 // 64


@pytest.mark.parametrize("precise", [0, 1, 2])
@pytest.mark.parametrize("width", [64, 40])
def test_rows_of_an_encoder_that_our_kernels_map_do_not_count(
    paper_bundle: Bundle, onnxruntimes_kernels: None, monkeypatch: pytest.MonkeyPatch, precise: int, width: int
) -> None:
    """But those of layers that are read in 16 bits, and of widths that are no whole units."""
    graph = dataclasses.replace(BLOCKWISE, precise_layers=precise)
    bundle = encoder_decoder(paper_bundle, "audio", graph)
    encoder = bundle.manifest.encoder
    assert encoder is not None
    rows = [
        dataclasses.replace(MATRICES, name=f"encoder.{name}", bits=8.0, block_size=64, bytes=68_000, method="rows")
        for name in ("attention", "feed_forward", "cross_attention")
    ]
    dims = dataclasses.replace(encoder, hidden_size=width)
    manifest = dataclasses.replace(bundle.manifest, encoder=dims, groups=[*bundle.manifest.groups, *rows])
    bundle = Bundle(bundle.root, manifest)
    without = running(bundle, source=0)["packed weights"]
    monkeypatch.setattr("edge.runtime.memory.footprint.map_weights", lambda: True)
    mapped = without - running(bundle, source=0)["packed weights"]
    blocks = sum(group.bytes + FLOAT * (group.parameters // group.block_size) for group in (EMBEDDING, MATRICES))
    share = (encoder.num_layers - precise) / encoder.num_layers if width % 32 == 0 else 0
    assert mapped - blocks == 2 * 68_000 * share


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_a_tied_embedding_is_packed_as_the_head_and_files_do_not_count(paper_bundle: Bundle) -> None:
    tied = running(with_groups(paper_bundle, EMBEDDING, MATRICES))
    untied = running(with_groups(paper_bundle, EMBEDDING, MATRICES, HEAD))
    assert tied == untied
    assert tied["packed weights"] > EMBEDDING.bytes
    assert sum(tied.values()) - sum(running(with_groups(paper_bundle, MATRICES)).values()) < 1.1 * EMBEDDING.bytes


def test_while_loading_nothing_has_run(paper_bundle: Bundle) -> None:
    loading = MemoryModel(paper_bundle).footprint(Demand(1, 1)).loading
    assert loading["KV cache"] == loading["activations"] == loading["logits"] == 0 < loading["tokenizer"]


def test_a_program_around_the_model_counts(paper_bundle: Bundle) -> None:
    def program(present: int) -> int:
        return MemoryModel(paper_bundle, present).footprint(Demand(1, 1)).running["program"]

    assert program(IMPORTED + 300 * MIB) == program(0) + 300 * MIB
    assert program(IMPORTED + SLACK) == program(0) == program(10 * MIB)


@pytest.mark.parametrize("what", ["context", "chunk", "width", "branches", "source"])
def test_more_of_anything_never_takes_less(paper_bundle: Bundle, what: str) -> None:
    model = MemoryModel(encoder_decoder(paper_bundle, "text", dataclasses.replace(BLOCKWISE, scores=True)))
    demand = Demand(5000, 16, 1, 1, 50)
    more = [model.footprint(dataclasses.replace(demand, **{what: n})).running for n in (1, 2, 30, 100, 5000)]
    sums = [sum(kinds.values()) for kinds in more]
    assert sums == sorted(sums) and sums[0] < sums[-1]


def test_a_prompt_shorter_than_the_chunk_takes_a_step_of_its_own_size(paper_bundle: Bundle) -> None:
    own = running(paper_bundle, context=5000, chunk=5000)["activations"]
    assert own == running(paper_bundle, context=5000, chunk=9000)["activations"] > MIB


def test_a_step_keeps_a_row_of_logits_for_each_token_and_sampling_a_few_more(paper_bundle: Bundle) -> None:
    row = paper_bundle.manifest.dims.vocab_size * FLOAT
    assert running(paper_bundle, width=8)["logits"] - running(paper_bundle)["logits"] == 2 * 7 * row


def test_states_do_not_grow_with_the_context(paper_bundle: Bundle) -> None:
    states = [State(0, "scan", [4, 16]), State(1, "conv", [3, 64])]
    bundle = dataclasses.replace(paper_bundle, manifest=dataclasses.replace(paper_bundle.manifest, states=states))
    one = running(bundle, context=100)["states"]
    assert one == (1 + LASTING + 1) * (4 * 16 + 3 * 64) * FLOAT == running(bundle, context=5000)["states"]
    assert running(bundle, context=100, branches=3)["states"] == 3 * one
    assert "states" not in running(paper_bundle)


def test_on_arm_the_scores_of_a_step_are_counted(paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    before = running(paper_bundle, context=5000, chunk=5000)["activations"]
    monkeypatch.setattr(instructions, "ARM", True)
    scores = paper_bundle.manifest.dims.num_heads * 5000 * 5000 * FLOAT
    assert running(paper_bundle, context=5000, chunk=5000)["activations"] == before + scores


def test_what_an_encoder_hands_over_is_counted_by_row(paper_bundle: Bundle) -> None:
    text = running(encoder_decoder(paper_bundle, "text"), source=30)
    assert text["cross-attention KV"] == 30 * 2 * 2 * 4 * 16 * FLOAT
    sound = running(encoder_decoder(paper_bundle, "audio"), source=0)
    assert sound["cross-attention KV"] == 1500 * 2 * 2 * 4 * 16 * FLOAT  # a window, whatever is said in it


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_matrices_whose_rows_are_read_precisely_are_packed_twice(paper_bundle: Bundle) -> None:
    sizes = {"cross_attention": 7_000, "attention": 20_000, "feed_forward": 40_000}
    rows = dataclasses.replace(MATRICES, bits=8.0, block_size=64, method="rows")
    groups = [dataclasses.replace(rows, name=f"encoder.{name}", bytes=size) for name, size in sizes.items()]

    def packed(layers: int) -> int:
        bundle = encoder_decoder(paper_bundle, "audio", dataclasses.replace(BLOCKWISE, precise_layers=layers))
        return running(with_groups(bundle, MATRICES, *groups))["packed weights"]

    assert packed(1) - packed(0) == 7_000 + 60_000 // 2
    assert packed(2) - packed(0) == 7_000 + 60_000


def test_only_attention_that_keeps_its_scores_takes_their_square(paper_bundle: Bundle) -> None:
    def growth(scores: bool) -> float:
        bundle = encoder_decoder(paper_bundle, "text", dataclasses.replace(BLOCKWISE, scores=scores))
        taken = [running(bundle, source=n)["encoder activations"] for n in (10_000, 20_000)]
        return taken[1] / taken[0]

    assert growth(False) == pytest.approx(2, rel=0.1)
    assert growth(True) == pytest.approx(4, rel=0.1)


def test_rows_that_are_taken_in_parts_take_less(paper_bundle: Bundle) -> None:
    wide = dataclasses.replace(MATRICES, name="encoder.feed_forward", parameters=2 * 64 * 4096)
    bundles = [
        with_groups(encoder_decoder(paper_bundle, "audio", dataclasses.replace(BLOCKWISE, parts=parts)), MATRICES, wide)
        for parts in (1, 2)
    ]
    whole, parts = (running(bundle)["encoder activations"] for bundle in bundles)
    assert 0.5 < parts / whole < 0.8


@pytest.mark.parametrize("reads", ["text", "audio"])
def test_of_a_graph_that_says_nothing_of_itself_the_most_is_expected(paper_bundle: Bundle, reads: str) -> None:
    """As in bundles that were exported earlier."""
    groups = [dataclasses.replace(MATRICES, name=f"encoder.{name}") for name in ("cross_attention", "attention")]
    groups += [MATRICES, dataclasses.replace(MATRICES, name="encoder.feed_forward")]

    def peak(encoder: Graph) -> int:
        bundle = with_groups(encoder_decoder(paper_bundle, reads, encoder), *groups)
        return sum(running(bundle, source=1_000).values())

    earlier = peak(Graph("encoder", BLOCKWISE.path))
    known = [dataclasses.replace(BLOCKWISE, scores=s, parts=p, precise_layers=n) for s in (False, True) for p in (1, 2)
             for n in (0, 1)]  # fmt: skip
    assert earlier == max(map(peak, known)) > peak(BLOCKWISE)


def test_tokenizers_are_told_apart_without_parsing_them(paper_bundle: Bundle) -> None:
    def tokenizer(text: str) -> int:
        (paper_bundle.root / "tokenizer.json").write_text(text)
        return running(paper_bundle)["tokenizer"]

    assert tokenizer(" " * (MIB - 3) + '{"type":"Unigram"}') > tokenizer('{"type":"BPE"}')  # across two blocks


def test_a_file_that_cannot_be_read_is_named(paper_bundle: Bundle) -> None:
    (paper_bundle.root / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match="tokenizer.json cannot be read"):
        MemoryModel(paper_bundle)


ANSWER = """
import json, sys, edge
model = edge.load(sys.argv[1])
result = model.generate("The moon changes its shape. " * 12, edge.GenerateOptions(max_tokens=200), raw=True)
print(json.dumps([result.prompt_tokens + result.generated_tokens, result.peak_private_mb]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the constants were measured on Linux")
@pytest.mark.parametrize("name", ["tiny_bundle", "int4_bundle"])
def test_a_tiny_bundle_peaks_where_it_is_predicted(name: str, request: pytest.FixtureRequest) -> None:
    """Within 15%, which is room for other builds of the libraries; benchmarks/memory_sweep.py holds to a tenth."""
    bundle: Bundle = request.getfixturevalue(name)
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(bundle.root)], capture_output=True, text=True, check=True, timeout=60
    )
    tokens, peak = json.loads(done.stdout)
    predicted = MemoryModel(bundle).footprint(Demand(tokens, 128)).peak / MIB
    assert predicted == pytest.approx(peak, rel=0.15)


PEAK = """
import sys, edge
model, tokens = edge.load(sys.argv[1], context=4200, kv="float32"), int(sys.argv[2])
sentence = "The moon changes its shape. "
prompt = sentence * (tokens // len(model.prompt_ids(sentence, raw=True)))
result = model.generate(prompt, edge.GenerateOptions(max_tokens=2), raw=True)
print(result.prompt_tokens, result.peak_private_mb)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_prompt_of_4096_tokens_takes_no_more_than_one_of_512_and_its_kv_cache(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Within 8 MiB, which two processes may differ by; activations of the whole prompt at once would be 80 more."""
    from transformers import AutoConfig, LlamaForCausalLM

    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "long", ignore=shutil.ignore_patterns("*.safetensors")))
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_key_value_heads": 4}
    config = AutoConfig.from_pretrained(tiny_checkpoint, max_position_embeddings=4352, head_dim=64, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    bundle = edge.export(folder, tmp_path / "long.edge", weights="int8", check=False, candidates=False)

    def measured(tokens: int) -> tuple[int, float]:
        command = [sys.executable, "-c", PEAK, str(bundle.root), str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        prompt, peak = done.stdout.split()
        return int(prompt), float(peak)

    (short, low), (long, high) = measured(512), measured(4096)
    cache = (long - short) * bundle.manifest.kv.bytes_per_token / MIB
    assert short > 480 and cache > 25
    assert 0.8 * cache < high - low < cache + 8


def test_the_model_does_not_need_the_engine() -> None:
    code = "import sys; from edge.runtime.memory.footprint import MemoryModel; print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
