"""A profile document with every field filled, of a device that does not exist."""

from __future__ import annotations

from edge.runtime.profile.record import (
    FORMAT,
    FORMAT_VERSION,
    BundleInfo,
    CurvePoint,
    Decode,
    Device,
    Load,
    Memory,
    MemorySample,
    Noise,
    Op,
    Peaks,
    Profile,
    Rate,
    Stats,
    Sustained,
    Ttft,
    Usage,
)

MB = 1_000_000
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
CONTEXTS = (16, 128, 512, 2000)
OPS = (  # type, us, bytes, flops
    ("MatMulNBits", 60.0, 1_200_000, 2_200_000),
    ("GroupQueryAttention", 18.0, 90_000, 150_000),
    ("Mul", 2.0, 9_000, 1_500),
)


def stats(ms: float, noise: float = 0.02) -> Stats:
    """Measurements around `ms` that scatter by `noise`, a fraction of it."""
    return Stats(
        count=40,
        p50_ms=ms,
        p90_ms=ms * (1 + 2 * noise),
        p99_ms=ms * (1 + 5 * noise),
        min_ms=ms * (1 - noise),
        jitter_ms=ms * noise,
        low_ms=ms * (1 - noise / 4),
        high_ms=ms * (1 + noise / 4),
    )


def step_ms(size: int, context: int) -> float:
    """A step on this device, in milliseconds."""
    return (3.0 + context / 1000) * (1 + 0.2 * (size - 1))


def int8_ms(size: int, context: int) -> float:
    """The same over a KV cache in int8."""
    return (3.1 + context / 3000) * (1 + 0.3 * (size - 1))


def example_profile(*, slower: float = 1.0, kind: str = "decoder", noise: float = 0.02) -> Profile:
    """A profile; `slower` multiplies all its times. `kind`: "decoder", "text" or "speech" (two encoder-decoders)."""
    encoder = kind != "decoder"
    inputs = (1500,) if kind == "speech" else CONTEXTS
    points = [(size, context, slower * step_ms(size, context)) for size in SIZES for context in CONTEXTS]
    return Profile(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        producer="edge test",
        created="2026-01-02T03:04:05+00:00",
        seconds=58.5,
        device=Device(
            name="paper-phone",
            cpu="Paper Core X4",
            cores=8,
            memory_bytes=8_000 * MB,
            os="Paper OS 12",
            runtime="onnxruntime 1.31.1",
            provider="CPUExecutionProvider",
            threads=4,
        ),
        bundle=BundleInfo(
            name={"decoder": "paper", "text": "paper-translator", "speech": "paper-ear"}[kind],
            sha256="ab" * 32,
            family={"decoder": "llama", "text": "t5", "speech": "whisper"}[kind],
            kind="encoder-decoder" if encoder else "decoder",
            input={"decoder": "prompt", "text": "source", "speech": "audio"}[kind],
            weights="int4",
            context=8192,
            parameters=135 * MB,
            bytes=98 * MB,
        ),
        context=2064,
        ttft=[
            Ttft(
                n,
                stats(slower * (5 + n / 1.5), noise),
                stats(slower * (2 + n / 2), noise) if encoder else None,
                30.0 if kind == "speech" else None,
            )
            for n in inputs
        ],
        decode=[Decode(n, stats(slower * step_ms(1, n), noise), 1000 / slower / step_ms(1, n)) for n in CONTEXTS],
        curve=[
            CurvePoint(size, context, ms, ms * (1 - noise / 4), ms * (1 + noise / 4), 12)
            for size, context, ms in points
        ],
        curve_int8=[
            CurvePoint(size, context, ms, ms * (1 - noise / 4), ms * (1 + noise / 4), 12)
            for size, context, ms in [(n, c, slower * int8_ms(n, c)) for n in SIZES if n <= 8 for c in CONTEXTS]
        ]
        if kind == "decoder"
        else [],
        source_tokens=512 if encoder else None,
        sustained=Sustained(
            tokens_per_s=280 / slower,
            slope_per_minute=-0.04,
            slope_low=-0.06,
            slope_high=-0.02,
            rates=[Rate(float(second), (290 - second) / slower, 500) for second in range(1, 16)],
        ),
        load=Load(warm=stats(180 * slower, noise), cold=stats(420 * slower, noise)),
        memory=Memory(
            peak_bytes=251 * MB,
            steady_bytes=228 * MB,
            prompt_tokens=512,
            capacity=2064,
            predicted={"weights": 98 * MB, "packed": 86 * MB, "kv": 24 * MB, "activations": 12 * MB, "floor": 40 * MB},
            predicted_bytes=260 * MB,
            samples=[
                MemorySample(0.05 * i, phase, {"weights": weights * MB, "kv": kv * MB, "other": 60 * MB})
                for i, (phase, weights, kv) in enumerate(
                    [("import", 0, 0), ("load", 60, 0), ("load", 180, 0), ("prefill", 120, 6), ("decode", 120, 24)]
                )
            ],
        ),
        usage=[Usage("prefill", 2048, 1.4, 5.1, 9.5, "battery"), Usage("decode", 4200, 15.0, 58.0, 71.0, "battery")],
        noise=Noise(spread=noise, drift=0.01, foreign_cpu=0.03),
        peaks=Peaks(memory_gb_per_s=32.0, gemm_gflop_per_s={"float32": 209.0, "int8": 1900.0, "int4": 600.0}),
        ops=[
            Op("decoder", size, str(layer), op_type, f"/layers.{layer}/{op_type}", 50, us * size, moved, flops * size)
            for size in (1, 128)
            for layer in range(3)
            for op_type, us, moved, flops in OPS
        ]
        + [Op("decoder", 1, "head", "MatMulNBits", "/head", 50, 300.0, 15_000_000, 56_000_000)],
        notes=["The page cache could not be dropped, so there is no cold load time."],
    )
