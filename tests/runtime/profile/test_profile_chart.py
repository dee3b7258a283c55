"""The roofline of a profile's page, drawn without a browser: where circles and labels are."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edge.profile import html

NODE = shutil.which("node")
SCRIPTS = Path(html.__file__).parent
# As much of a page as drawing needs: elements that keep what they are given.
PAGE = """
const made = (name) => ({ name, attributes: {}, children: [], setAttribute(k, v) { this.attributes[k] = v; },
  append(...more) { this.children.push(...more); }, addEventListener() {} });
globalThis.document = { createElementNS: (_, name) => made(name), createElement: made, getElementById: made };
globalThis.addEventListener = () => {};
const given = JSON.parse(process.argv[1]);
const profile = { peaks: given.peaks };
const colour = () => "red";
const count = (value) => String(value);
"""
DRAW = """
const svg = made("svg");
const height = roofline(svg, given.width, given.step);
const shapes = svg.children.map(({ name, attributes, textContent }) => ({ name, text: textContent, ...attributes }));
console.log(JSON.stringify({ height, shapes }));
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def drawn(width: int, parts: list[dict[str, Any]]) -> tuple[float, list[dict[str, Any]]]:
    peaks = {"memory_gb_per_s": 12.0, "cache_gb_per_s": 90.0, "gemm_gflop_per_s": {"float32": 110.0, "int8": 420.0}}
    step = {"us": sum(part["us"] for part in parts), "parts": parts}
    script = PAGE + "".join((SCRIPTS / name).read_text() for name in ("charts.js", "operators.js")) + DRAW
    given = json.dumps({"peaks": peaks, "step": step, "width": width})
    assert NODE is not None
    ended = subprocess.run([NODE, "-e", script, given], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    return found["height"], found["shapes"]


def some_parts(choose: random.Random) -> list[dict[str, Any]]:
    """Parts of a step: a few that take most of the time, and small ones near each other or far from all."""
    parts = []
    for name in ("layers/mlp", "layers/attention", "lm_head", "embed", "norm", "rotary", "add", "scale"):
        us, moved = 10 ** choose.uniform(0, 4), int(10 ** choose.uniform(1, 8))
        flops = int(moved * 10 ** choose.uniform(-4, 4)) + 1
        kind = {"kind": "attention", "nodes": 3, "layer": "", "limit": None, "op_type": "MatMul"}
        parts.append({"path": name, "us": us, "bytes": moved, "flops": flops, **kind})
    return parts


@pytest.mark.parametrize("width", [300, 360, 560, 1100])
@pytest.mark.parametrize("seed", range(4))
def test_circles_are_inside_the_frame_and_labels_cover_nothing(seed: int, width: int) -> None:
    parts = some_parts(random.Random(seed))
    height, shapes = drawn(width, parts)
    circles = [(each["cx"], each["cy"], each["r"]) for each in shapes if each["name"] == "circle"]
    assert len(circles) == len(parts)
    for x, y, r in circles:
        assert r <= x <= width - r and r <= y <= height - 40 - r + 3
    boxes = [(x - r, y - r, x + r, y + r) for x, y, r in circles]
    for each in shapes:
        if each["name"] == "text" and each.get("class") == "halo strong":
            length = 6.6 * len(each["text"])
            left = each["x"] - {"start": 0, "middle": length / 2, "end": length}[each["text-anchor"]]
            box = (left, each["y"] - 11, left + length, each["y"] + 3)
            assert not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes)
            boxes.append(box)


def test_a_logarithmic_axis_says_so() -> None:
    _, shapes = drawn(560, some_parts(random.Random(1)))
    texts = [each.get("text") for each in shapes]
    assert "operations per byte moved, logarithmic" in texts and "GFLOP/s, logarithmic" in texts
