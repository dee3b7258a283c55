"""Optimum's ORTModelForSeq2SeqLM: ONNX Runtime under transformers' `generate`, float or its dynamic int8."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from seq2seq.seq2seq_engine import TEXT, Loaded, Translated

PACKAGE = "optimum-onnx"
MODULES = ("optimum.onnxruntime", "transformers", "torch")
IMPORT = "from optimum.onnxruntime import ORTModelForSeq2SeqLM"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {TEXT: {"float32": {}, "dynamic int8": {}}}


class _Optimum:
    def __init__(self, model: Path, threads: int) -> None:
        import onnxruntime
        from optimum.onnxruntime import ORTModelForSeq2SeqLM
        from transformers import PreTrainedTokenizerFast

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._model = ORTModelForSeq2SeqLM.from_pretrained(
            str(model), provider="CPUExecutionProvider", session_options=options
        )
        # Not AutoTokenizer: Optimum holds transformers 4, which does not know the tokenizer classes of 5.
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))

    def translate(self, texts: list[str], beams: int, n: int, batch: int) -> Translated:
        start = time.perf_counter()
        found = []
        for text in texts:
            given = self._tokenizer(text, return_tensors="pt")
            ids = self._model.generate(
                input_ids=given.input_ids,
                attention_mask=given.attention_mask,
                num_beams=beams,
                do_sample=False,
                max_new_tokens=n,
            )
            found.append(self._tokenizer.decode(ids[0], skip_special_tokens=True))
        return Translated(time.perf_counter() - start, found)


def load(model: Path, threads: int, capacity: int, task: str) -> Loaded:
    return _Optimum(model, threads)  # type: ignore[return-value]
