"""Qualcomm's NPUs (Hexagon, QNN's backend HTP), with the plugin `onnxruntime-qnn`, which simulates one on x86.

It takes graphs of fixed shapes with quantized activations. Of a graph for the CPU it takes next to nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType

from edge.children import find_program, run
from edge.runtime.providers.plugin import Plugin
from edge.runtime.providers.provider import NPU

NAME = "qnn"
HELP = "Qualcomm's NPUs; on x86 a simulator"
TRAITS = {"onnxruntime": "QNNExecutionProvider"}

SIMULATED = {"htp_arch": "75"}  # Snapdragon 8 Gen 3; the default is 68, whose products err 15 times as much
MACHINE = Path("/sys/devices/soc0/machine")


def _options(module: ModuleType) -> dict[str, str]:
    # By default the CPU quantizes what goes in and out.
    return {"backend_path": module.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}


def _chip() -> str | None:
    """Return the name of the chip as Android, or Linux on a Qualcomm chip, has it: sm8650."""
    name = ""
    with contextlib.suppress(OSError):  # TimeoutError is one
        if getprop := find_program("getprop"):  # Android's
            name = run([getprop, "ro.soc.model"], 10).output
        else:
            name = MACHINE.read_text(encoding="ascii", errors="replace")
    return name.strip().lower() or None


PLUGIN = Plugin(
    NAME, TRAITS["onnxruntime"], "onnxruntime_qnn", "npu-qualcomm",
    needs="a Qualcomm NPU, or an x86 processor for its simulator", kinds=(NPU,), simulates="Hexagon", chip=_chip,
    options=_options, simulator_options=SIMULATED,
)  # fmt: skip
find, make = PLUGIN.find, PLUGIN.make
