"""An encoder-decoder beside a decoder alone of the same size, both on this runtime, with random weights.

After Elfeki et al. 2025, "Return of the Encoder: Maximizing Parameter Efficiency for SLMs": two thirds of the layers'
weights are the encoder's, one third the decoder's. A layer of width d has 4 d^2 weights in an attention and 3 d f in a
feed-forward block; with f near 8/3 d, 16 encoder and 6 decoder layers hold as many as 24 of a decoder alone.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

from comparison import Part, Run
from processes import REST_S, Worker
from report import Metric, Panel, ratio, table

INPUT, OUTPUT = 512, 64
VOCABULARY = 16_384
WEIGHTS = "int8"  # of both: the 4-bit method needs text to calibrate on, and random weights have none
# Name: width, feed-forward width, layers of encoder, decoder, decoder alone. Heads are 64 wide.
SIZES = {"100M": (768, 2048, 8, 3, 12), "300M": (960, 2816, 16, 6, 24)}
BOTH, ALONE = "encoder-decoder", "decoder alone"


def configs(size: str) -> dict[str, dict[str, Any]]:
    """transformers' configurations of both models."""
    width, wide, encoder, decoder, layers = SIZES[size]
    t5 = dict(
        model_type="t5", vocab_size=VOCABULARY, d_model=width, d_kv=64, num_heads=width // 64, d_ff=wide,
        num_layers=encoder, num_decoder_layers=decoder, feed_forward_proj="gated-gelu", tie_word_embeddings=True,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    llama = dict(
        model_type="llama", vocab_size=VOCABULARY, hidden_size=width, intermediate_size=wide, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return {BOTH: t5, ALONE: llama}


def compare(run: Run) -> Part:
    """First-token latency and tokens per second: 512 tokens in, 64 out."""
    part = Part(f"Return of the Encoder: {INPUT} tokens in, {OUTPUT} out, {WEIGHTS} weights, {run.threads} threads")
    part.engines = [BOTH, ALONE]
    rows = [["", BOTH, ALONE, "ratio"]]
    weights: dict[str, int] = {}
    for size in SIZES:
        for metric in _size(run, size, weights):
            found = ratio(metric.rounds, ALONE, BOTH)
            part.metrics.append(metric)
            part.details[metric.label] = vars(found)
            shown = [metric.shown(median(metric.rounds[name])) for name in part.engines]
            better = "" if metric.more_is_better else " (less is better)"
            rows.append([f"{metric.label}, {metric.unit}{better}", *shown, str(found)])
    counted = "; ".join(f"{name}: {count / 1e6:.1f}M" for name, count in weights.items())
    part.text = [table(rows), f"Weights: {counted}. The paper's ratios: first token 0.53, throughput 4.7."]
    part.details["weights"] = weights
    part.panels = [
        Panel("Return of the Encoder: first token, ms (less is better)", _rows(part, "first token")),
        Panel("Return of the Encoder: tokens/s of the whole answer", _rows(part, "throughput")),
    ]
    return part


def _rows(part: Part, start: str) -> dict[str, Metric]:
    return {m.label.split()[-1]: m for m in part.metrics if m.label.startswith(start)}


def _size(run: Run, size: str, counted: dict[str, int]) -> list[Metric]:
    run.say(f"\nReturn of the Encoder: {size}")
    workers = {}
    for name, config in configs(size).items():
        shape = "both" if name == BOTH else "alone"
        weights = (WEIGHTS, WEIGHTS) if name == BOTH else (WEIGHTS,)
        model = run.sources.bundle(run.sources.random(f"{shape}-{size}", **config), *weights)
        module = "seq2seq.edge_runtime" if name == BOTH else "engines.edge_runtime"
        request = {"model": str(model), "threads": run.threads, "capacity": INPUT + OUTPUT, "settings": {}}
        workers[name] = Worker(sys.executable, module, run.log, request)
        counted[f"{name}, {size}"] = _parameters(model)
    values: dict[str, dict[str, list[float]]] = {of: {n: [] for n in workers} for of in ("first", "decode", "all")}
    for number in range(run.plan.rounds + 1):
        for name, worker in list(workers.items())[:: -1 if number % 2 else 1]:
            time.sleep(REST_S)
            ids = [2 + (number * 31 + 7 * i) % 256 for i in range(INPUT)]
            with run.watch.over(worker):
                timed = worker.generate(ids, OUTPUT - 1)
            if number > 0:  # the first one is unmeasured
                values["first"][name].append(1000 * timed.prefill_s)
                values["decode"][name].append(1 / timed.decode_s)
                values["all"][name].append(OUTPUT / (timed.prefill_s + (OUTPUT - 1) * timed.decode_s))
    for worker in workers.values():
        worker.close()
    return [
        Metric(f"first token, {size}", "ms", False, values["first"]),
        Metric(f"decode, {size}", "tokens/s", True, values["decode"]),
        Metric(f"throughput, {size}", "tokens/s", True, values["all"]),
    ]


def _parameters(bundle: Any) -> int:
    import edge

    return sum(group.parameters for group in edge.open_bundle(bundle).manifest.groups)
