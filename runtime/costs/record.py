"""The profile document: what was measured of one bundle on one device, typed and versioned.

docs/reference/profile-format.md describes the same fields for people who write one elsewhere, such as on a phone. Times
are in milliseconds, memory in bytes, ratios are fractions; a name ends in its unit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.errors import InputError
from edge.text_file import read_text
from edge.typed_json import read_json, typed

FORMAT = "edge-profile"
FORMAT_VERSION = 1
ADVICE = "profile the bundle again"
POSITIVE = (
    ".p50_ms", ".low_ms", ".high_ms", ".ms", ".tokens_per_s", ".count", ".size", ".threads", ".memory_gb_per_s",
    ".cache_gb_per_s", ".float32", ".int8", ".int4",
)  # fmt: skip


@dataclass(frozen=True)
class Stats:
    """Statistics of repeated measurements of one thing, in milliseconds."""

    count: int  # measurements
    p50_ms: float  # the median
    p90_ms: float
    p99_ms: float
    min_ms: float
    jitter_ms: float  # mean difference between one measurement and the next, without its sign
    low_ms: float  # the median lies between low and high with 95% confidence
    high_ms: float


@dataclass(frozen=True)
class Device:
    """The device of the figures. Figures of different devices, providers or threads are never mixed."""

    name: str  # as people call it: a host name, or a phone's model
    cpu: str
    cores: int  # that the process may use
    memory_bytes: int | None
    os: str
    runtime: str  # "onnxruntime 1.31.1"
    provider: str  # onnxruntime's name of the execution provider: "CPUExecutionProvider"
    threads: int

    @property
    def identity(self) -> dict[str, object]:
        """Fields that two measurements must share to be of one device, by their names in words."""
        named = {"processor": self.cpu, "cores": self.cores, "runtime": self.runtime}
        return {**named, "provider": self.provider, "threads": self.threads}


@dataclass(frozen=True)
class BundleInfo:
    """The bundle that was measured."""

    name: str
    sha256: str  # of its edge.json, which holds the sha256 of every other file
    family: str
    kind: str  # "decoder" or "encoder-decoder"
    input: str  # what stands at `Ttft.input_tokens`: "prompt" tokens, an encoder's "source" tokens, or "audio" frames
    weights: str  # "int4", ...
    context: int  # most tokens the bundle takes
    parameters: int
    bytes: int  # of all files


@dataclass(frozen=True)
class Ttft:
    """Time to first token: from the input's tokens (or samples) to the first token of the output."""

    input_tokens: int  # prompt tokens; source tokens of an encoder-decoder; frames for the decoder where it hears
    time: Stats
    encode: Stats | None = None  # the encoder's share, where there is one (for audio with the frontend's)
    audio_s: float | None = None  # seconds of sound that were encoded


@dataclass(frozen=True)
class Decode:
    """Time per output token, one after another, while the KV cache holds about `context` tokens."""

    context: int
    time: Stats
    tokens_per_s: float  # tokens over the sum of their times: the mean, where `time` has the median


@dataclass(frozen=True)
class CurvePoint:
    """t(S, context): a step of `size` tokens, with logits of every one, at `context` tokens in the KV cache."""

    size: int
    context: int
    ms: float  # the median
    low_ms: float  # 95% confidence interval of it
    high_ms: float
    count: int = 0  # measurements


@dataclass(frozen=True)
class Rate:
    """Tokens per second in the time before `second`, counted from the start of the long answer."""

    second: float
    tokens_per_s: float
    context: int  # tokens in the KV cache, on average


@dataclass(frozen=True)
class Sustained:
    """Tokens per second of long answers in a row, each as long as the one before: what is left is the machine's."""

    tokens_per_s: float  # all tokens over all seconds
    slope_per_minute: float  # change of the rate, as a fraction of it: -0.02 is two percent slower each minute
    slope_low: float  # 95% confidence interval of it
    slope_high: float
    rates: list[Rate] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """From opening the bundle to an engine that can take a step, in a fresh process that has imported everything."""

    warm: Stats  # the files in the system's page cache
    cold: Stats | None = None  # after they were dropped from it; null where the system does not let anyone


@dataclass(frozen=True)
class MemorySample:
    """Resident bytes at one moment: private ones, and pages of files."""

    second: float
    phase: str  # "start", "import", "load", "prefill", "decode"
    kinds: dict[str, int]  # bytes by kind: see docs/reference/profile-format.md


@dataclass(frozen=True)
class Memory:
    """Memory of a fresh process that loads the bundle and answers once, against what was predicted."""

    peak_bytes: int | None  # resident, of the whole process
    steady_bytes: int | None  # resident, while decoding
    peak_private_bytes: int | None = None  # that the system cannot take back: see `edge.runtime.memory.process.held`
    steady_private_bytes: int | None = None
    prompt_tokens: int = 0
    capacity: int = 0  # of the KV cache, in tokens
    predicted: dict[str, int] | None = None  # private bytes by kind, of the memory model at its peak
    predicted_bytes: int | None = None  # their sum
    samples: list[MemorySample] = field(default_factory=list)


@dataclass(frozen=True)
class Usage:
    """Time and energy of one phase."""

    phase: str  # "prefill" or "decode"
    tokens: int
    wall_s: float
    cpu_s: float  # of all threads
    energy_j: float | None = None
    energy_of: str | None = None  # what the joules are of: "package-0" (RAPL), "battery" (the whole device)


@dataclass(frozen=True)
class Noise:
    """Steadiness of the machine: times of one step that was measured again and again between all others."""

    spread: float  # half the middle 80% of its times over their median
    drift: float  # its median in the last third of the time over that in the first, minus one
    foreign_cpu: float | None = None  # share of the machine that other processes took meanwhile


@dataclass(frozen=True)
class Peaks:
    """Peak rates of this machine, measured: the two lines of a roofline."""

    memory_gb_per_s: float  # reading memory that fits no cache, with all threads
    gemm_gflop_per_s: dict[str, float]  # by arithmetic: "float32", "int8", "int4"
    cache_gb_per_s: float | None = None  # reading the same 4 MB again and again


@dataclass(frozen=True)
class Op:
    """Time in one node of a graph, per run of the graph."""

    graph: str  # its role: "decoder", "encoder", "frontend"
    size: int  # tokens of the step
    layer: str  # "0", "1", ... or the name of what stands before or after them: "embed_tokens", "lm_head"
    op_type: str
    node: str
    count: int  # runs that were measured
    us: float  # time of one run, without what the profiler adds
    bytes: int | None = None  # moved in one run: weights and inputs read, outputs written
    flops: int | None = None  # of one run
    context: int | None = None  # tokens in the KV cache before it, where there is one
    arithmetic: str | None = None  # which of `Peaks.gemm_gflop_per_s` its operations are held against
    provider: str | None = None  # onnxruntime's name of the execution provider that ran it


@dataclass(frozen=True)
class Placement:
    """The part of one graph that one execution provider runs. Shares are of the graph's sum over all providers."""

    graph: str  # its role
    provider: str  # onnxruntime's name of it
    nodes: int
    node_share: float
    weight_bytes: int  # of the stored values that its nodes read
    weight_share: float
    time_share: float | None = None  # of the time in nodes, of a step of one token or a run of an encoder or a frontend


@dataclass(frozen=True)
class Skipped:
    """Decoding under a skip policy, or by the whole decoder (``off``), in turns, and what the policy costs."""

    skip: str  # as `edge run --skip` takes it
    layers: float  # that run for a token, in the mean; a feed-forward block or an attention counts half
    ms: float  # of a token
    tokens_per_s: float
    speed: float  # times the whole decoder's
    prompt: int  # tokens, of what was timed
    answer: int  # tokens of it
    tokens: int  # of the bundle's own answers, over which the loss is measured
    same: int  # of these: that stay the likeliest
    times_perplexity: float  # of such text, times the whole decoder's
    ruins: bool  # whether it is refused for that


@dataclass(frozen=True)
class Profile:
    """The content of a profile document."""

    format: str
    format_version: int
    producer: str  # "edge 0.1.0"
    created: str  # ISO 8601, with the time zone
    seconds: float  # that measuring took
    device: Device
    bundle: BundleInfo
    context: int  # the KV cache's capacity in tokens
    ttft: list[Ttft] = field(default_factory=list)
    decode: list[Decode] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    curve_int8: list[CurvePoint] = field(default_factory=list)  # the same over a KV cache in int8
    source_tokens: int | None = None  # rows that the encoder handed to the decoder in `decode` and `curve`
    sustained: Sustained | None = None
    load: Load | None = None
    memory: Memory | None = None
    usage: list[Usage] = field(default_factory=list)
    noise: Noise | None = None
    peaks: Peaks | None = None
    ops: list[Op] = field(default_factory=list)
    placement: list[Placement] = field(default_factory=list)  # which execution provider runs what
    skipped: list[Skipped] = field(default_factory=list)  # skip policies, the whole decoder first
    notes: list[str] = field(default_factory=list)  # what a reader should know: what was cut short, and why

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str, where: str, advice: str = ADVICE) -> Profile:
    """A profile from its JSON text. Unknown fields of the same format version are ignored. where: names the file.

    Raises:
        InputError: not a profile, another format version, or a field that is missing, of another type, or a number
            that no measurement gives.
    """
    raw = read_json(text, where, advice=advice, error=InputError)
    version = raw.get("format_version")
    if raw.get("format") != FORMAT or not isinstance(version, int) or isinstance(version, bool):
        raise InputError(f"{where} is not a profile; edge profile BUNDLE --json writes one.")
    if version != FORMAT_VERSION:
        raise InputError(f"{where} has format version {version}, and this edge reads {FORMAT_VERSION}; {advice}.")
    profile = typed(raw, Profile, where, advice=advice, error=InputError)
    for fault in _faults(raw, ""):
        raise InputError(f"{where} cannot be used: {fault}; {advice}.")
    return profile


def _faults(value: Any, path: str) -> Iterator[str]:
    """Numbers that no measurement gives, such as a time of zero."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _faults(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _faults(item, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
    elif path.endswith(POSITIVE) and isinstance(value, int | float) and value <= 0:
        yield f"{path} is {value}, and must be above 0"


def read_profile(path: Path) -> Profile:
    """The profile in a file. Raises: as `parse`, and where the file cannot be read."""
    return parse(read_text(path, "The profile"), str(path))
