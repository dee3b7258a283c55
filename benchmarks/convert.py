"""The GGUF file as a transformers directory, for the peers that read nothing else; and what conversions need."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from engines.decoding_engine import Models, Unavailable

_NEEDS = ("edge", "torch", "transformers", "gguf", "safetensors")


def transformers_folder(models: Models, dtype: str) -> Path:
    """The checkpoint as transformers reads it, its weights dequantized to `dtype`: float32 or bfloat16."""
    out = models.work / f"transformers-{dtype}"
    if not out.is_dir():
        python = python_with(models.pythons, *_NEEDS)
        if python is None:
            raise Unavailable(f"dequantizing the GGUF file needs {', '.join(_NEEDS)} in one environment")
        with folder(out) as part:
            run([python, str(Path(__file__).resolve()), str(models.gguf), str(part), dtype])
    return out


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


def key(path: Path) -> str:
    """A name for the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _convert(gguf: Path, out: Path, dtype: str) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import load_torch

    checkpoint = open_checkpoint(str(gguf))
    load_torch(checkpoint).to(getattr(torch, dtype)).save_pretrained(out)
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


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
