"""Models in the forms that engines read: made once, kept in a folder.

Run as a script it makes one of a peer's, in the interpreter whose environment has what that needs:

    python convert.py FORM SOURCE OUT [ARGUMENT ...]
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from engines import Models, Unavailable

HERE = str(Path(__file__).resolve())


def transformers_folder(models: Models) -> Path:
    """A GGUF file as transformers reads it, its weights dequantized to float32."""
    needs = ("edge", "torch", "transformers", "gguf", "safetensors")
    return _made(models.work / "transformers", models.pythons, needs, "decoder", str(models.gguf))


def ctranslate2(source: Path, work: Path, pythons: Sequence[str]) -> Path:
    """CTranslate2's conversion of an encoder-decoder, int8 on disk, so that loading has nothing to convert."""
    if not (source / "model.safetensors").is_file():
        needs = ("edge", "torch", "transformers", "safetensors")
        source = _made(work / "transformers", pythons, needs, "encoder_decoder", str(source))
    return _made(work / "ctranslate2", pythons, ("ctranslate2", "torch", "transformers"), "ctranslate2", str(source))


def _made(out: Path, pythons: Sequence[str], needs: tuple[str, ...], form: str, source: str, *arguments: str) -> Path:
    if not out.is_dir():
        python = python_with(tuple(pythons), *needs)
        if python is None:
            raise Unavailable(f"making its model needs {', '.join(needs)} in one environment")
        with folder(out) as part:
            run([python, HERE, form, source, str(part), *arguments])
    return out


def bundle(source: Path, work: Path, name: str, *options: str) -> Path:
    """This runtime's bundle, made anew where the exporter's code has changed."""
    from edge.export.quantize.calibration_cache import code_key

    path = work / f"{name}-{code_key():08x}.edge"
    if not path.exists():
        print(f"making {name}", flush=True)
        run([sys.executable, "-m", "edge.cli.main", "export", str(source), "-o", str(path), *options])
    return path


@cache
def python_with(pythons: Sequence[str], *modules: str) -> str | None:
    """The first of the interpreters that finds all the modules."""
    code = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    for python in pythons:
        if subprocess.run([python, "-c", code, *modules], capture_output=True).returncode == 0:
            return python
    return None


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """A folder that gets its name once it is whole."""
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    part.rename(path)


def run(command: list[str]) -> None:
    """Run a conversion; its output is shown only where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Unavailable(f"its model cannot be prepared: {last}")


def key(source: Path) -> str:
    """A name for the content of a file, or of the weights in a folder."""
    files = [source]
    if source.is_dir():
        files = [path for pattern in ("*.safetensors", "model.bin") for path in sorted(source.glob(pattern))]
        if not files:
            raise Unavailable(f"{source} holds no model.safetensors and no model.bin")
    content = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()[:12]


def _decoder(gguf: str, out: str) -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import load_torch

    checkpoint = open_checkpoint(gguf)
    load_torch(checkpoint).save_pretrained(out)
    files = checkpoint.tokenizer
    backend = Tokenizer.from_str(files.json)

    def text(token: int | None) -> str | None:
        return None if token is None else backend.id_to_token(token)

    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=text(files.tokens.bos),
        eos_token=text(next(iter(files.tokens.eos), None)),
        pad_token=text(files.tokens.pad),
        chat_template=files.chat_template,
    ).save_pretrained(out)


def _encoder_decoder(source: str, out: str) -> None:
    """Of Whisper alone: CTranslate2's float16 is what the catalog has."""
    from edge.export.checkpoint import open_checkpoint
    from edge.export.manifest.speech_format import speech
    from edge.export.reference.in_torch import load_torch

    checkpoint = open_checkpoint(source)
    model, spoken = load_torch(checkpoint), speech(checkpoint)
    model.generation_config._from_model_config = False  # what was not in the model's would be dropped when it is read
    model.generation_config.update(
        is_multilingual=bool(spoken.languages),
        lang_to_id={f"<|{code}|>": i for code, i in spoken.languages.items()},
        task_to_id=spoken.tasks,
        no_timestamps_token_id=spoken.no_timestamps,
        suppress_tokens=spoken.suppress,
        begin_suppress_tokens=spoken.begin_suppress,
        decoder_start_token_id=spoken.start,
        max_length=model.config.max_target_positions,
    )
    model.save_pretrained(out)
    (Path(out) / "tokenizer.json").write_text(checkpoint.tokenizer.json)


def _ctranslate2(source: str, out: str) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source, copy_files=["tokenizer.json"]).convert(out, quantization="int8", force=True)


if __name__ == "__main__":
    globals()[f"_{sys.argv[1]}"](*sys.argv[2:])
