"""A copy of onnxruntime-genai's model with a bundle's own 4-bit weights: two engines then say about the same text.

    python benchmarks/same_weights.py --bundle smollm2-135m-instruct.edge --genai GENAI_MODEL -o GENAI_SAME
    python benchmarks/speculation.py --bundle smollm2-135m-instruct.edge --genai GENAI_SAME --peer genai ...

How much drafts gain depends on the text, and a model that was rounded another way says another one; how fast steps are
depends on the bytes of its weights. The model comes from the peer's own builder, in 4 bits, with `--extra_options
fuse_mlp_gate_up=true`, so that its products are the bundle's, one by one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRODUCT, GATHER = "MatMulNBits", "GatherBlockQuantized"
INTS = ("bits", "block_size")


def main() -> int:
    """Write the copy. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--genai", type=Path, required=True, help="the model as its builder wrote it")
    parser.add_argument("--out", "-o", type=Path, required=True, help="folder that does not exist yet")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists already; name another --out, or remove it")
    import onnx

    import edge

    bundle = edge.open_bundle(args.bundle)
    ours = onnx.load(str(bundle.path(bundle.manifest.graph("decoder").path)), load_external_data=False)
    onnx.external_data_helper.load_external_data_for_model(ours, str(bundle.root))
    theirs = onnx.load(str(args.genai / "model.onnx"))
    try:
        replace(ours.graph, theirs.graph)
    except ValueError as e:
        print(f"same_weights: {e}", file=sys.stderr)
        return 2
    left = shutil.ignore_patterns("model.onnx", "model.onnx.data")
    shutil.copytree(args.genai, args.out, ignore=left)
    onnx.save(theirs, str(args.out / "model.onnx"), save_as_external_data=True, location="model.onnx.data")
    return 0


def replace(ours: Any, theirs: Any) -> None:
    """Give every quantized product and table of `theirs` the weights of ours, in their order.

    Raises:
        ValueError: the two do not have the same products.
    """
    own, there = {i.name: i for i in ours.initializer}, {i.name for i in theirs.initializer}
    for kind in (PRODUCT, GATHER):
        pairs = of(ours, kind), of(theirs, kind)
        if [shape(node) for node in pairs[0]] != [shape(node) for node in pairs[1]]:
            raise ValueError(f"the two models do not have the same {kind} operators")
        for mine, target in zip(*pairs, strict=True):
            places = (1, 2, 3) if kind == PRODUCT else (0, 2, 3)
            while len(target.input) < 4:
                target.input.append("")
            for place in places:
                target.input[place] = name = mine.input[place] if place < len(mine.input) else ""
                if name and name not in there:
                    there.add(name)
                    theirs.initializer.append(own[name])
            for name in INTS:
                value = next(a.i for a in mine.attribute if a.name == name)
                next(a for a in target.attribute if a.name == name).i = value
    used = {name for node in theirs.node for name in node.input}
    kept = [i for i in theirs.initializer if i.name in used]
    del theirs.initializer[:]
    theirs.initializer.extend(kept)


def of(graph: Any, kind: str) -> list[Any]:
    """The graph's operators of one kind."""
    return [node for node in graph.node if node.op_type == kind]


def shape(node: Any) -> Sequence[int]:
    """Columns and rows of a product; nothing for a table."""
    return [a.i for name in ("N", "K") for a in node.attribute if a.name == name]


if __name__ == "__main__":
    sys.exit(main())
