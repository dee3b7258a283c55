"""A ready ONNX model: a folder of Optimum, of transformers.js or of onnxruntime-genai's builder, or a file of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

SUFFIX = ".onnx"
GENAI = "genai_config.json"
INSIDE = "onnx"  # the folder in which transformers.js looks
STEMS = ("model", "decoder_model_merged")  # of decoders with a cache
PARTS = ("encoder_model", "decoder_model", "decoder_with_past_model")  # of models in several files
# Weights that Torch reads, of which a better bundle is made.
TORCH = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("adapter_config.json", "model.bin"),
)
# The ends of files' names that --weights may mean, the best first.
OF_WEIGHTS = {"int4": ("q4", "bnb4"), "int8": ("quantized", "int8", "uint8"), "fp32": ("", "fp32")}


def is_onnx_model(path: Path) -> bool:
    """True for an .onnx file, and for a folder that has some and no weights for Torch."""
    if path.suffix == SUFFIX and path.is_file():
        return True
    return path.is_dir() and is_of_onnx(_names(path))


def is_of_onnx(names: Iterable[str]) -> bool:
    """The same of a folder with files of these names."""
    there = set(names)
    return there.isdisjoint(TORCH) and (GENAI in there or any(name.endswith(SUFFIX) for name in there))


def decoders(names: Iterable[str]) -> dict[str, str]:
    """The files of decoders among a folder's, by what follows `STEMS` in their names: "", "q4", "quantized", ..."""
    found = dict[str, str]()
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        path = PurePosixPath(name)
        if path.suffix != SUFFIX or str(path.parent) not in (".", INSIDE):
            continue
        for stem in STEMS:
            rest = path.stem.removeprefix(stem)
            if path.stem.startswith(stem) and rest[:1] in ("", "_"):
                found.setdefault(rest[1:], name)
    return found


def chosen(found: Mapping[str, str], weights: str | None = None) -> str | None:
    """One of `decoders`, with weights of this kind; default: the smallest that a CPU computes well. None: there is
    none."""
    kinds = list(OF_WEIGHTS) if weights is None else [weights]
    ends = [end for kind in kinds for end in OF_WEIGHTS.get(kind, ()) if end in found]
    if not ends and list(found) == [""] and weights is None:
        ends = [""]
    return found[ends[0]] if ends else None


def in_parts(names: Iterable[str]) -> list[str]:
    """The files of a model in several of them."""
    return sorted(name for name in names if name.endswith(SUFFIX) and PurePosixPath(name).stem in PARTS)


def root_of(file: Path) -> Path:
    """The folder with the configuration and the tokenizer of an .onnx file."""
    folder = file.parent.absolute()
    here = any((folder / name).is_file() for name in ("config.json", GENAI))
    return folder.parent if not here and folder.name == INSIDE else folder


def wanted(names: Iterable[str]) -> list[str]:
    """The files among a folder's that its default model is made of, without configuration and tokenizer."""
    there = list(names)
    found = decoders(there)
    taken = chosen(found)
    return _with_data(there, [taken] if taken is not None else [name for name in there if name.endswith(SUFFIX)])


def files_of(path: Path) -> list[Path]:
    """The files of a model's graph and weights, at the path of its folder or of its file."""
    if not path.is_dir():
        return [path.parent / name for name in _with_data(_names(path.parent), [path.name])]
    return [path / name for name in wanted(_names(path))]


def _with_data(names: Iterable[str], graphs: list[str]) -> list[str]:
    """Graphs, and the files of their folders that may have their tensors: all that belong to no other graph."""
    there = list(names)
    others = [name for name in there if name.endswith(SUFFIX) and name not in graphs]
    folders = {PurePosixPath(name).parent for name in graphs}
    data = [
        name
        for name in there
        if PurePosixPath(name).parent in folders
        and not name.endswith(SUFFIX)
        and not name.startswith(tuple(others))
        and PurePosixPath(name).suffix not in (".json", ".md", ".txt", ".jinja")
    ]
    return sorted({*graphs, *data})


def _names(folder: Path) -> list[str]:
    """The files of a folder and of the one inside."""
    places = [place for place in (folder, folder / INSIDE) if place.is_dir()]
    return sorted(file.relative_to(folder).as_posix() for place in places for file in place.iterdir() if file.is_file())


def onnx_files(folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """The files of decoders in a folder, by the ends of their names, and those of models in several files."""
    names = _names(folder)
    found = {end: folder / name for end, name in decoders(names).items()}
    return found, [folder / name for name in in_parts(names)]
