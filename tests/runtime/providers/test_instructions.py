"""What a processor lacks is named, and bundles that it may compute wrongly are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.profile.profile import ProfileOptions, _Run
from edge.runtime.providers import instructions

HASWELL = "processor\t: 0\nmodel name\t: Haswell\nflags\t\t: fpu sse2 avx avx2 fma\n"
ZEN_5 = "processor\t: 0\nflags\t\t: fpu sse2 avx avx2 fma avx512f avx512_vnni\n"
ALDER_LAKE = "processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n"
CORTEX_A53 = "processor\t: 0\nFeatures\t: fp asimd aes crc32\n"
NEOVERSE_N1 = "processor\t: 0\nFeatures\t: fp asimd aes asimddp\n"


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    instructions.lacking.cache_clear()
    monkeypatch.setattr(instructions, "CPUINFO", tmp_path / "cpuinfo")
    yield monkeypatch
    instructions.lacking.cache_clear()


def on(processor: pytest.MonkeyPatch, machine: str, text: str) -> None:
    instructions.CPUINFO.write_text(text)
    processor.setattr(instructions, "MACHINE", machine)


@pytest.mark.parametrize(
    ("machine", "text", "named"),
    [
        ("x86_64", HASWELL, "VNNI"),
        ("x86_64", ZEN_5, None),
        ("x86_64", ALDER_LAKE, None),
        ("aarch64", CORTEX_A53, "dot products"),
        ("aarch64", NEOVERSE_N1, None),
        ("riscv64", "isa : rv64imafdcv", None),
        ("x86_64", "nothing that is known", None),
    ],
)
def test_what_a_processor_lacks_is_named(
    processor: pytest.MonkeyPatch, machine: str, text: str, named: str | None
) -> None:
    on(processor, machine, text)
    said = instructions.lacking()
    assert said is None if named is None else said is not None and f"lacks {named}:" in said


def test_systems_that_do_not_tell_are_believed_to_lack_nothing(processor: pytest.MonkeyPatch) -> None:
    assert instructions.lacking() is None


def test_inspect_and_profile_say_it(
    processor: pytest.MonkeyPatch, tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    on(processor, "x86_64", HASWELL)
    assert main(["inspect", str(tiny_bundle.root)]) == 0
    assert "This processor lacks VNNI" in capsys.readouterr().out
    assert _Run(tiny_bundle, ProfileOptions(), None)._notes == [instructions.lacking()]
