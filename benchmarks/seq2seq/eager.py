"""transformers, eager mode (nothing compiled), float32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from seq2seq.seq2seq_engine import RECORDING, SPEECH, TEXT, Heard, Loaded, Transcribed, Translated

PACKAGE = "transformers"
MODULES = ("torch", "transformers")
IMPORT = "import torch; from transformers import AutoModelForSeq2SeqLM, WhisperForConditionalGeneration"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    SPEECH: {"float32": {}},
    RECORDING: {"float32": {}},
    TEXT: {"float32, 1 thread": {"threads": 1}, "float32, 2 threads": {"threads": 2}},
}


class _Speech:
    def __init__(self, model: Path) -> None:
        import torch
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

        self._torch = torch
        self._model = WhisperForConditionalGeneration.from_pretrained(str(model), dtype=torch.float32).eval()
        self._tokenizer = WhisperTokenizerFast.from_pretrained(str(model))
        self._extract = WhisperFeatureExtractor(feature_size=self._model.config.num_mel_bins)

    def hear(self, pcm: str, features: str, prompt: list[int], suppress: list[int], beams: int, n: int) -> Heard:
        import numpy as np
        from transformers import GenerationMixin
        from transformers.modeling_outputs import BaseModelOutput

        heard = self._torch.from_numpy(np.load(features))
        start = time.perf_counter()
        encoded = self._model.get_encoder()(heard)
        middle = time.perf_counter()
        # Whisper's own `generate` knows no fixed number of tokens; this is the one that it calls.
        found = GenerationMixin.generate(
            self._model,
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            decoder_input_ids=self._torch.tensor([prompt]),
            suppress_tokens=suppress,
            begin_suppress_tokens=None,
            forced_decoder_ids=None,
            num_beams=beams,
            do_sample=False,
            min_new_tokens=n,
            max_new_tokens=n,
        )
        return Heard(middle - start, time.perf_counter() - middle, found[0, len(prompt) :].tolist())

    def transcribe(self, pcm: str, beams: int) -> Transcribed:
        import numpy as np

        samples = np.load(pcm)
        window = self._extract.n_samples
        long = {"truncation": False, "padding": "longest", "return_attention_mask": True}
        start = time.perf_counter()
        given = self._extract(
            samples,
            sampling_rate=self._extract.sampling_rate,
            return_tensors="pt",
            **(long if len(samples) > window else {"return_attention_mask": True}),
        )
        found = self._model.generate(
            given.input_features,
            attention_mask=given.attention_mask,
            language="en",
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            condition_on_prev_tokens=True,
            temperature=(0.0,),
            num_beams=beams,
        )
        segments = [
            (float(s["start"]), float(s["end"]), self._tokenizer.decode(s["tokens"], skip_special_tokens=True))
            for s in found["segments"][0]
        ]
        return Transcribed(time.perf_counter() - start, [s for s in segments if s[2].strip()])


class _Text:
    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self._model = AutoModelForSeq2SeqLM.from_pretrained(str(model), dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(str(model))

    def translate(self, texts: list[str], beams: int, n: int, batch: int) -> Translated:
        start = time.perf_counter()
        found: list[str] = []
        for i in range(0, len(texts), batch):
            given = self._tokenizer(texts[i : i + batch], return_tensors="pt", padding=True)
            ids = self._model.generate(
                input_ids=given.input_ids,
                attention_mask=given.attention_mask,
                num_beams=beams,
                do_sample=False,
                max_new_tokens=n,
            )
            found += self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return Translated(time.perf_counter() - start, found)


def load(model: Path, threads: int, capacity: int, task: str) -> Loaded:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return _Text(model) if task == TEXT else _Speech(model)  # type: ignore[return-value]
