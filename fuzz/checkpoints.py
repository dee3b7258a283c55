"""What is done with a checkpoint that may be damaged: all of it is read, and a bundle made of what was accepted."""

from __future__ import annotations

from pathlib import Path

from fuzz.bundles import answer


def read_checkpoint(source: Path) -> None:
    """Open a checkpoint; read its tokenizer and every tensor."""
    from edge.export.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(str(source))
    assert checkpoint.tokenizer.json
    for name in checkpoint.names():
        assert checkpoint.read(name).shape == checkpoint.shape(name)
        checkpoint.blocks(name)


def export_checkpoint(source: Path, place: Path) -> None:
    """Make a bundle of a checkpoint as `edge run` does, and let it answer."""
    import edge

    answer(edge.export(source, place / "made.edge", effort="quick", check=False, candidates=False).root)
