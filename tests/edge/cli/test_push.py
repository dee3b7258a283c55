"""`edge push` against a stand-in for `adb` and the phone: no phone was there."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in_adb
from paper_bundles import encoder_decoder
from places import ROOT
from profile_example import example_profile

from edge.bundle import MANIFEST, Bundle
from edge.cli import push_adb, push_app
from edge.cli.main import main
from edge.runtime.costs.record import read_profile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a script")

SERIAL = "emulator-5554"
SHELL = f"-s {SERIAL} shell"
PART = "files/bundles/paper.edge.part"
MEASURED = """INSTRUMENTATION_STATUS: measured=first token after 16 tokens
INSTRUMENTATION_STATUS_CODE: 0
INSTRUMENTATION_STATUS: measured=token at context 16
INSTRUMENTATION_STATUS_CODE: 0
INSTRUMENTATION_RESULT: profile=files/profiles/paper.profile.json
INSTRUMENTATION_CODE: -1
"""
Push = Callable[..., tuple[int, str, str]]


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a phone; the test's own folder is another."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "phone"


@pytest.fixture
def push(phone: Path, paper_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> Push:
    """Runs the command on a phone that is as it is told; gives status, output and errors."""

    def run(*options: str, **state: Any) -> tuple[int, str, str]:
        whole = {"instrument": MEASURED, "profile": example_profile().to_json(), **state}
        adb = stand_in_adb.install(phone, **whole)
        status = main(["push", str(paper_bundle.root), "--adb", str(adb), *options])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refused(push: Push) -> Callable[..., str]:
    """The sentence that it refused with, and that nothing is left here."""

    def run(*options: str, **state: Any) -> str:
        status, _, errors = push(*options, **state)
        assert status == 2 and list(Path().iterdir()) == []
        (sentence,) = (line for line in errors.splitlines() if line.startswith("edge: "))
        return sentence.removeprefix("edge: ")

    return run


def shelf(phone: Path) -> list[str]:
    return sorted(path.name for path in (phone / "app" / "files" / "bundles").iterdir())


def same(phone: Path, bundle: Bundle) -> bool:
    copy = phone / "app" / "files" / "bundles" / "paper.edge"
    names = [MANIFEST, *(file.path for file in bundle.manifest.files)]
    found = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    return found == sorted(names) and all((copy / n).read_bytes() == bundle.path(n).read_bytes() for n in names)


def inside(script: str) -> str:
    """The call by which a script without quotes runs as the app."""
    return f"{SHELL} run-as dev.edgelm.app sh -c '{script}'"


def test_a_bundle_is_copied_measured_and_its_profile_fetched(push: Push, phone: Path, paper_bundle: Bundle) -> None:
    status, out, errors = push()
    assert status == 0, errors
    assert same(phone, paper_bundle) and shelf(phone) == ["paper.edge"]
    assert read_profile(Path("paper.profile.json")) == example_profile()
    assert list(Path().iterdir()) == [Path("paper.profile.json")]
    assert "Files    5 of 5 copied to the phone emulator-5554" in out and "Profile  paper.profile.json" in out
    made = stand_in_adb.calls(phone)
    files = ["edge.json", "golden.json", "graphs/decoder.onnx", "tokenizer.json", "weights.bin"]
    assert sorted(made[5:10]) == [inside(f"cat > {PART}/{name}") for name in files]
    survey = (
        "mkdir -p files/bundles && cd files/bundles || exit 1; rm -rf paper.edge.old; "
        "for folder in paper.edge paper.edge.part; do "
        'if [ -d "$folder" ]; then find "$folder" -type f -exec sha256sum {} +; fi; done; echo; df -k .'
    )
    order = " ".join([*(file.path for file in paper_bundle.manifest.files), "edge.json"])
    assert made[:5] + made[10:] == [
        "devices",
        f"{SHELL} pm path dev.edgelm.app",
        f"{SHELL} run-as dev.edgelm.app true",
        inside(survey),
        inside(f"mkdir -p {PART} {PART}/graphs"),
        inside(f"cd {PART} && sha256sum {order}"),
        inside(
            "cd files/bundles && if [ -e paper.edge ]; then mv paper.edge paper.edge.old; fi && "
            "mv paper.edge.part paper.edge && rm -rf paper.edge.old"
        ),
        f"{SHELL} am instrument -w -r -e bundle paper.edge dev.edgelm.app/.ProfileInstrumentation",
        inside("cat files/profiles/paper.profile.json"),
    ]


def test_what_is_there_is_not_copied_again(push: Push, phone: Path, paper_bundle: Bundle) -> None:
    shutil.copytree(paper_bundle.root, phone / "app" / "files" / "bundles" / "paper.edge")
    _, out, _ = push("-o", "again.json")
    assert "paper.edge is on the phone emulator-5554 already" in out
    assert not [call for call in stand_in_adb.calls(phone) if "cat >" in call]
    assert read_profile(Path("again.json")) == example_profile()


def test_a_new_bundle_of_the_same_name_takes_over_what_is_the_same(
    push: Push, phone: Path, paper_bundle: Bundle
) -> None:
    copy = shutil.copytree(paper_bundle.root, phone / "app" / "files" / "bundles" / "paper.edge")
    (copy / "edge.json").write_text("an older one's")
    (copy / "old.bin").write_text("which it had")
    _, out, _ = push()
    assert "1 of 5 copied" in out and same(phone, paper_bundle) and shelf(phone) == ["paper.edge"]
    made = stand_in_adb.calls(phone)
    assert [call for call in made if "cat >" in call] == [inside(f"cat > {PART}/edge.json")]
    assert f"cp files/bundles/paper.edge/weights.bin {PART}/weights.bin" in made[4]


def test_a_copy_that_was_cut_off_is_invisible_and_goes_on(
    push: Push, refused: Callable[..., str], phone: Path, paper_bundle: Bundle
) -> None:
    sentence = refused(gone=f"{PART}/tokenizer.json")
    assert sentence.startswith(f"The phone {SERIAL} went away (device 'emulator-5554' not found); check its cable")
    assert shelf(phone) == ["paper.edge.part"]
    (phone / "app" / PART / "weights.bin").write_bytes(b"cut off")
    (phone / "app" / PART / "stale.bin").write_bytes(b"of another bundle")
    stand_in_adb.calls(phone)
    push()
    again = [call.rpartition("/")[2].strip("'") for call in stand_in_adb.calls(phone) if "cat >" in call]
    assert {"tokenizer.json", "weights.bin"} <= set(again) and len(again) < 5
    assert same(phone, paper_bundle) and shelf(phone) == ["paper.edge"]


def test_a_phone_that_goes_away_between_the_two_renames_loses_nothing(
    push: Push, phone: Path, paper_bundle: Bundle
) -> None:
    folder = phone / "app" / "files" / "bundles"
    shutil.copytree(paper_bundle.root, folder / "paper.edge.part")
    (folder / "paper.edge.old").mkdir()
    push()
    assert not [call for call in stand_in_adb.calls(phone) if "cat >" in call]
    assert same(phone, paper_bundle) and shelf(phone) == ["paper.edge"]


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"devices": ""}, "No phone is connected"),
        ({"devices": "a\tdevice\nb\tdevice\n"}, "Several phones are connected (a, b); name one with --serial."),
        ({"devices": "a\tunauthorized\n"}, "does not trust this computer; unlock it"),
        ({"devices": "a\toffline\n"}, "The phone a cannot be used, adb says: offline."),
        ({"devices": "a\tno permissions (udev); see [http://x]\n"}, "adb says: no permissions (udev); see [http://x]."),
        ({"installed": False}, "is not on the phone emulator-5554; build it with android_demo/app/build_apk.py"),
        ({"debuggable": False}, "is not a debug build"),
        (
            {"free": 16 << 10},
            "There is no room on the phone emulator-5554: paper.edge needs 17 MB more, and 17 MB are free.",
        ),
        ({"free": "?"}, "does not say how much storage is free, but Filesystem"),
        ({"gone": "sha256sum"}, "went away (device 'emulator-5554' not found)"),
        (
            {"harm": "cat > files/bundles/paper.edge.part/weights.bin"},
            "did not arrive on the phone emulator-5554 as it was sent",
        ),
    ],
)
def test_what_goes_wrong_before_measuring_is_a_sentence(
    refused: Callable[..., str], state: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(**state)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"gone": "am instrument"}, "went away (device 'emulator-5554' not found)"),
        ({"gone": "cat files/profiles"}, "went away (device 'emulator-5554' not found)"),
        ({"profile": None}, "refused: cat: files/profiles/paper.profile.json: No such file or directory."),
        ({"profile": '{"format": "edge-'}, "The profile of the phone emulator-5554"),
        ({"instrument": MEASURED.partition("INSTRUMENTATION_RESULT")[0]}, "went away while it measured paper.edge"),
        (
            {"instrument": "INSTRUMENTATION_RESULT: problem=There is too little\nmemory.\nINSTRUMENTATION_CODE: 0\n"},
            "The app did not measure paper.edge: There is too little memory.",
        ),
        (
            {"instrument": "INSTRUMENTATION_RESULT: shortMsg=Process crashed.\nINSTRUMENTATION_CODE: 0\n"},
            "The app ended while it measured paper.edge (Process crashed); there may be too little memory.",
        ),
        (
            {
                "instrument": "INSTRUMENTATION_STATUS: id=ActivityManagerService\n"
                "INSTRUMENTATION_STATUS: Error=Unable to find instrumentation info for: ComponentInfo{x}\n"
                "INSTRUMENTATION_STATUS_CODE: -1\n"
            },
            "cannot be asked to measure; install the present one.",
        ),
    ],
)
def test_what_goes_wrong_while_measuring_is_a_sentence(
    refused: Callable[..., str], phone: Path, paper_bundle: Bundle, state: dict[str, Any], sentence: str
) -> None:
    shutil.copytree(paper_bundle.root, phone / "app" / "files" / "bundles" / "paper.edge")
    assert sentence in refused(**state)


def test_a_phone_is_named_by_its_serial_number(push: Push, refused: Callable[..., str], phone: Path) -> None:
    several = {"devices": f"other\tunauthorized\n{SERIAL}\tdevice\n"}
    assert "There is no phone X here; connected: other, emulator-5554." in refused("--serial", "X", **several)
    assert push("--serial", SERIAL, **several)[0] == 0


@pytest.mark.parametrize("call", ["pm path", "cat > files/bundles/paper.edge.part/weights.bin", "am instrument"])
def test_a_phone_that_says_nothing_is_not_waited_for(
    refused: Callable[..., str], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_adb, "QUICK_S", 1.5)
    monkeypatch.setattr(push_app, "SILENT_S", 1.5)
    assert f"The phone {SERIAL} did nothing for 2 s; check its cable" in refused(silent=call)


def test_adb_itself_must_be_there(
    paper_bundle: Bundle, phone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["push", str(paper_bundle.root)]) == 2
    assert "There is no adb on the PATH; install" in capsys.readouterr().err
    assert main(["push", str(paper_bundle.root), "--adb", "no/adb"]) == 2
    assert "There is no adb at no/adb." in capsys.readouterr().err
    Path("adb").write_text("")
    assert main(["push", str(paper_bundle.root), "--adb", str(Path("adb").resolve())]) == 2
    assert "cannot be run: Permission denied." in capsys.readouterr().err


def test_a_damaged_bundle_is_refused_before_the_phone_is_asked(
    refused: Callable[..., str], phone: Path, paper_bundle: Bundle
) -> None:
    weights = paper_bundle.path("weights.bin")
    weights.write_bytes(bytes(weights.stat().st_size))
    assert "is damaged: its sha256 differs" in refused()
    assert stand_in_adb.calls(phone) == []


def test_a_model_that_the_app_cannot_measure_is_copied(
    push: Push, refused: Callable[..., str], phone: Path, paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = encoder_decoder(paper_bundle, "text")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    files = [dataclasses.replace(file, sha256=empty) if file.size == 0 else file for file in translator.manifest.files]
    translator = dataclasses.replace(translator, manifest=dataclasses.replace(translator.manifest, files=files))
    monkeypatch.setattr("edge.cli.push.open_answering", lambda path: translator)
    assert "the app measures chat models only; omit it for paper." in refused("-o", "x.json")
    status, out, _ = push()
    assert status == 0 and "Profile  none: the app measures chat models only" in out
    assert shelf(phone) == ["paper.edge"]
    assert not [call for call in stand_in_adb.calls(phone) if "instrument" in call]


def test_a_name_with_signs_is_one_word_on_the_phone(
    phone: Path, paper_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Path(shutil.copytree(paper_bundle.root, paper_bundle.root.parent / "it's $HOME; a; b.edge"))
    adb = stand_in_adb.install(phone, instrument=MEASURED, profile=example_profile().to_json())
    assert main(["push", str(odd), "--adb", str(adb), "-o", "x.json"]) == 0, capsys.readouterr().err
    assert shelf(phone) == ["its HOME a b.edge"]
    assert "-e bundle 'its HOME a b.edge' dev" in stand_in_adb.calls(phone)[-2]


def test_the_app_has_what_the_command_asks_for() -> None:
    app = ROOT / "android_demo" / "app" / "src" / "main"
    manifest = ElementTree.parse(app / "AndroidManifest.xml").getroot().find("instrumentation")
    assert manifest is not None
    android = "{http://schemas.android.com/apk/res/android}"
    asked = f"{manifest.get(f'{android}targetPackage')}/{manifest.get(f'{android}name')}"
    assert asked == push_app.INSTRUMENTATION
    kotlin = app / "kotlin" / "dev" / "edgelm" / "app"
    code = (kotlin / "ProfileInstrumentation.kt").read_text()
    assert all(f'"{word}"' in code for word in ("bundle", "measured", "profile", "problem"))
    assert f'"{push_app.PART}"' in (kotlin / "bundles" / "BundleShelf.kt").read_text()
    assert 'File(filesDir, "bundles")' in (kotlin / "EdgeApp.kt").read_text()
