"""A checkpoint of an encoder-decoder in every form that an engine reads: made once, kept in a folder.

Run as a script it makes one of them, in the interpreter whose environment has what that needs:

    python sources.py FORM SOURCE OUT [ARGUMENT ...]
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from functools import cache
from pathlib import Path

import convert
from engines.decoding_engine import Unavailable

NEEDS = {
    "bundle": ("edge", "torch", "transformers", "onnxscript"),
    "hugging": ("edge", "torch", "transformers", "safetensors"),
    "ctranslate2": ("ctranslate2", "torch", "transformers"),
    "optimum": ("optimum.onnxruntime", "torch", "transformers"),
    "features": ("transformers", "numpy"),
    "random": ("torch", "transformers", "tokenizers"),
}


class Sources:
    """The forms, by the content of what they are made from.

    Args:
        work: the folder that keeps them.
        pythons: interpreters whose environments packages are looked for in, in this order.
    """

    def __init__(self, work: Path, pythons: tuple[str, ...]) -> None:
        self.work, self.pythons = work, pythons

    def bundle(self, source: Path, *weights: str) -> Path:
        """This runtime's bundle, made anew whenever the exporter's code has changed.

        weights: the encoder's and the decoder's, or those of a decoder alone; default: what the exporter does unasked.
        """
        return self._made(source, f"{'+'.join(weights or ['default'])}-{exporter_key()}.edge", "bundle", *weights)

    def hugging(self, source: Path) -> Path:
        """The checkpoint as transformers reads it, float32; itself where it is that already."""
        if (source / "model.safetensors").is_file():
            return source
        return self._made(source, "transformers", "hugging")

    def ctranslate2(self, source: Path) -> Path:
        """CTranslate2's own conversion, int8 on disk, so that loading has nothing to convert."""
        return self._made(self.hugging(source), "ctranslate2-int8", "ctranslate2")

    def optimum(self, source: Path, weights: str) -> Path:
        """Optimum's ONNX export; weights: float32 or int8."""
        hugging = self.hugging(source)
        if weights == "float32":
            return self._made(hugging, "optimum-float32", "optimum")
        return self._made(hugging, "optimum-int8", "optimum", str(self.optimum(source, "float32")))

    def features(self, pcm: Path, mels: int) -> Path:
        """Whisper's features of one window, as transformers' extractor computes them."""
        return self._made(pcm, f"features-{mels}", "features", str(mels)) / "features.npy"

    def random(self, name: str, **config: object) -> Path:
        """A checkpoint of random weights, float16, with a small tokenizer."""
        return self._made(None, f"random-{name}", "random", json.dumps(config))

    def _made(self, source: Path | None, name: str, form: str, *arguments: str) -> Path:
        out = self.work / (_key(source) if source is not None else "") / name
        if not out.is_dir():
            python = convert.python_with(self.pythons, *NEEDS[form])
            if python is None:
                raise Unavailable(f"making its model needs {', '.join(NEEDS[form])} in one environment")
            with convert.folder(out) as part:
                here = str(Path(__file__).resolve())
                convert.run([python, here, form, str(source), str(part), *arguments])
        return out


@cache
def _key(source: Path) -> str:
    """A name for the content of a file, or of the weights in a folder."""
    if source.is_file():
        return convert.key(source)
    weights = [path for pattern in ("*.safetensors", "model.bin") for path in sorted(source.glob(pattern))]
    if not weights:
        raise Unavailable(f"{source} holds no model.safetensors and no model.bin")
    return hashlib.sha256("".join(map(convert.key, weights)).encode()).hexdigest()[:12]


@cache
def exporter_key() -> str:
    """A name for the code that writes bundles."""
    from edge.export.quantize.calibration_cache import code_key

    return f"{code_key():08x}"


def _bundle(source: str, out: str, *weights: str) -> None:
    import edge

    names = {0: (), 1: ("weights",), 2: ("encoder_weights", "decoder_weights")}[len(weights)]
    Path(out).rmdir()
    edge.export(source, out, name="benchmark", check=False, **dict(zip(names, weights, strict=True)))


def _hugging(source: str, out: str) -> None:
    from edge.export.checkpoint import open_checkpoint
    from edge.export.manifest.speech_format import speech
    from edge.export.reference.in_torch import load_torch

    checkpoint = open_checkpoint(source)
    model = load_torch(checkpoint)
    spoken = speech(checkpoint)
    settings = dict(
        is_multilingual=bool(spoken.languages),
        lang_to_id={f"<|{code}|>": i for code, i in spoken.languages.items()},
        task_to_id=spoken.tasks,
        no_timestamps_token_id=spoken.no_timestamps,
        prev_sot_token_id=spoken.previous,
        max_initial_timestamp_index=spoken.max_initial_timestamp_index,
        suppress_tokens=spoken.suppress,
        begin_suppress_tokens=spoken.begin_suppress,
        decoder_start_token_id=spoken.start,
        max_length=model.config.max_target_positions,
    )
    model.generation_config._from_model_config = False  # what was not in the model's would be dropped when it is read
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(out)
    (Path(out) / "tokenizer.json").write_text(checkpoint.tokenizer.json)


def _ctranslate2(source: str, out: str) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source, copy_files=["tokenizer.json"]).convert(out, quantization="int8", force=True)


def _optimum(source: str, out: str, exported: str | None = None) -> None:
    from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    if exported is None:
        ORTModelForSeq2SeqLM.from_pretrained(source, export=True).save_pretrained(out)
    else:
        dynamic = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        for path in sorted(Path(exported).glob("*.onnx")):
            ORTQuantizer.from_pretrained(exported, file_name=path.name).quantize(dynamic, out, file_suffix=None)
    shutil.copyfile(Path(source) / "tokenizer.json", Path(out) / "tokenizer.json")


def _features(source: str, out: str, mels: str) -> None:
    import numpy as np
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=int(mels))
    found = extractor(np.load(source), sampling_rate=extractor.sampling_rate, return_tensors="np")
    np.save(Path(out) / "features.npy", found.input_features.astype(np.float32))


def _random(source: str, out: str, given: str) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model(**json.loads(given))
    torch.manual_seed(0)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    auto.from_config(config, dtype=torch.float16).save_pretrained(out)
    special = ["<pad>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*special, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special[0], eos_token=special[1]).save_pretrained(out)


if __name__ == "__main__":
    globals()[f"_{sys.argv[1]}"](*sys.argv[2:])
