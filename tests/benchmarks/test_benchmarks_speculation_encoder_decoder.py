"""The command that measures drafts of encoder-decoders, on tiny bundles."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import speculation_encoder_decoder
from sounds import sound, write_wave
from tiny_encoder_decoders import t5_bundle, whisper_bundle
from unigram_tokenizers import SENTENCES


def test_forms_are_compared_in_turns_and_exact_texts_do_not_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_2016_flickr.en").write_text("\n".join(SENTENCES))
    (tmp_path / "audio").mkdir()
    write_wave(tmp_path / "audio" / "one.wav", np.clip(sound(3, 0), -1, 1))
    command = ["--translator", t5_bundle(tmp_path).root, "--multi30k", tmp_path, "--rounds", 2, "--out", tmp_path]
    command += ["--whisper", whisper_bundle(tmp_path).root, "--audio", tmp_path / "audio", "--work", tmp_path]
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, [*command, "--threads", 2])])
    assert speculation_encoder_decoder.main() == 0
    shown = capsys.readouterr().out
    parts = json.loads((tmp_path / "speculation_encoder_decoder.json").read_text())["parts"]
    assert list(parts) == ["translations", "copies, simulated", "speech"]
    assert all(f"## {name}: " in shown for name in parts) and "3 s of speech" in shown
    for name, forms in parts.items():
        assert list(forms)[:2] == ["off~", "off"] and all(len(did["seconds"]) == 2 for did in forms.values())
        assert not any(did["differing"] for form, did in forms.items() if not form.endswith("~"))
        assert len({did["tokens"] for form, did in forms.items() if not form.endswith("~")}) == 1
        drafted = forms["lookup" if name == "speech" else "input"]
        assert drafted["steps"] + drafted["accepted"] >= drafted["tokens"] > 0
    copies = parts["copies, simulated"]["input"]
    assert copies["accepted"] > 0.3 * copies["tokens"]
