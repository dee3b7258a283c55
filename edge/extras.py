"""The optional dependencies: the feature that each adds, and the sentence that names a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.errors import MissingExtraError

# By import names. What a .gguf file needs comes first: whatever lacks one of it is told to install the small extra.
EXTRAS = {
    "gguf": ("gguf", "huggingface_hub", "ml_dtypes", "onnx", "onnx_ir", "onnxscript"),
    "export": ("safetensors", "sentencepiece", "torch", "transformers"),
    "tune": ("peft",),
    "grammar": ("llguidance",),
    "serve": ("anyio", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
    "cluster": ("grpc", "ray"),
    "npu-qualcomm": ("onnxruntime_qnn",),
    "npu-intel": ("onnxruntime_ep_openvino",),
    "webgpu": ("onnxruntime_ep_webgpu",),
}
CLONE = Path(__file__).resolve().parents[1]


def install(extra: str, options: str = "") -> str:
    """The command that brings an extra. Until there is a release on PyPI that is one of a clone: of this one, where
    `edge` runs from it. options: more of pip's."""
    import shlex

    if (CLONE / "pyproject.toml").is_file():
        return f"pip install {options}-e {shlex.quote(f'{CLONE}[{extra}]')}"
    return f"pip install {options}'.[{extra}]' in a clone of edge"


def extra_of(error: ModuleNotFoundError) -> str | None:
    """Return the extra that installs the missing package; None if there is none."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


@contextmanager
def needing(what: str, extra: str | None = None, *, instead: str = "") -> Iterator[None]:
    """Context manager and decorator that turns a missing package into a sentence. what: needs the package. extra:
    installs all that is needed; default: the smallest extra that has the missing package. instead: advice for doing
    without the extra `export`.

    Raises:
        MissingExtraError: a package of an extra is missing.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if (extra := extra or extra_of(e)) is None:
            raise
        other = f", {instead}" if instead and extra == "export" else ""
        sentence = f"{what} needs {e.name}; install it with: {install(extra)}{other}"
        raise MissingExtraError(sentence) from None
