"""The app of `android_demo/app` on a phone, as `edge push` uses it: its bundles, and its way to measure one.

Files are written by `run-as`, which lets adb act as a debug build in that app's own folder, on every Android. To the
app's folder on the shared storage `adb push` fails on some phones since Android 11, and from `/data/local/tmp` a file
would have to be copied once more. They are sent through `cat`, so that nothing is on the phone twice.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge.bundle import MANIFEST, Bundle, sha256_of
from edge.cli.push_adb import Phone
from edge.errors import PhoneError

PACKAGE = "dev.edgelm.app"
INSTRUMENTATION = f"{PACKAGE}/.ProfileInstrumentation"
FOLDER = "files/bundles"  # in the app's own folder, where run-as begins
END, PART, OLD = ".edge", ".part", ".old"  # the app shows folders that end in .edge, and no others
SPARE = 16 << 20  # bytes that stay free on the phone, as the app leaves them when it copies
HASHING_S, SILENT_S = 600, 900  # for hashing a bundle; for one figure of a slow phone
DONE = "-1"  # android.app.Activity.RESULT_OK

Progress = Callable[[int], None]


def check_app(phone: Phone) -> None:
    """Raise PhoneError if the app is not installed, or is not a debug build, whose files alone adb may write."""
    if not phone.shell(f"pm path {PACKAGE}").output.startswith("package:"):
        raise PhoneError(
            f"The app {PACKAGE} is not on the phone {phone.serial}; build it with android_demo/app/build_apk.py, and "
            "run: adb install android_demo/app/target/edge-debug.apk"
        )
    if phone.shell(f"run-as {PACKAGE} true").status != 0:
        raise PhoneError(
            f"The app on the phone {phone.serial} is not a debug build, and only of such a one adb may write the "
            "files; install the one that android_demo/app/build_apk.py makes."
        )


def name_of(bundle: Bundle) -> str:
    """The bundle's folder on the phone, by the app's own rule."""
    stem = bundle.root.resolve().name.removesuffix(END)
    plain = "".join(c for c in stem if c.isalnum() or c in "-_. ").strip(". ")
    return (plain or "model") + END


@dataclass(frozen=True)
class Missing:
    """The files of a bundle that a phone lacks. sent: files that are nowhere on the phone; reused: files of the older
    bundle of this name; stale: files of an interrupted copy that are not in this bundle."""

    sha256s: dict[str, str]
    sent: list[str]
    reused: list[str]
    stale: list[str]
    free: int  # bytes on the phone


def survey(phone: Phone, bundle: Bundle, name: str) -> Missing | None:
    """Compare the phone's files with the bundle's; return the missing ones, or None if the bundle is there already."""
    wanted = {file.path: file.sha256 for file in bundle.manifest.files}
    wanted[MANIFEST] = sha256_of(bundle.root / MANIFEST)
    whole, part = shlex.quote(name), shlex.quote(name + PART)
    printed = _inside(
        phone,
        f"mkdir -p {FOLDER} && cd {FOLDER} || exit 1; rm -rf {shlex.quote(name + OLD)}; "
        f"for folder in {whole} {part}; do "
        'if [ -d "$folder" ]; then find "$folder" -type f -exec sha256sum {} +; fi; done; echo; df -k .',
        HASHING_S,
    )
    listed, _, space = f"\n{printed}".partition("\n\n")
    there = {path: digest for digest, _, path in (line.partition("  ") for line in listed.splitlines() if line)}
    if all(there.get(f"{name}/{path}") == digest for path, digest in wanted.items()):
        return None
    done = {path for path, digest in wanted.items() if there.get(f"{name}{PART}/{path}") == digest}
    old = {path for path, digest in wanted.items() if there.get(f"{name}/{path}") == digest}
    copied = [path.removeprefix(f"{name}{PART}/") for path in there if path.startswith(f"{name}{PART}/")]
    rest = [path for path in wanted if path not in done]
    return Missing(
        sha256s=wanted,
        sent=[path for path in rest if path not in old],
        reused=[path for path in rest if path in old],
        stale=[path for path in copied if path not in done],
        free=_free(phone, space),
    )


def _free(phone: Phone, space: str) -> int:
    """Return the free bytes that `df -k` prints: its last columns are available blocks, a share and a mount point."""
    columns = space.strip().splitlines()[-1].split() if space.strip() else []
    if len(columns) < 4 or not columns[-3].isdecimal():
        said = space.strip() or "nothing"
        raise PhoneError(f"The phone {phone.serial} does not say how much storage is free, but {said}.")
    return int(columns[-3]) << 10


def copy(phone: Phone, bundle: Bundle, name: str, missing: Missing, progress: Progress) -> None:
    """Copy the missing files to a folder that the app does not show, and rename it to the bundle when it is complete.
    PhoneError if there is no room, or the phone goes away. Files that were copied until then need not be copied
    again."""
    sizes = {path: bundle.path(path).stat().st_size for path in missing.sha256s}
    needed = sum(sizes[path] for path in (*missing.sent, *missing.reused)) + SPARE
    if needed > missing.free:
        raise PhoneError(
            f"There is no room on the phone {phone.serial}: {name} needs {needed / 1e6:,.0f} MB more, and "
            f"{missing.free / 1e6:,.0f} MB are free."
        )
    part = f"{FOLDER}/{name}{PART}"
    folders = sorted({f"{part}/{path}".rpartition("/")[0] for path in missing.sha256s})
    steps = [f"rm -f {_quoted(f'{part}/{path}' for path in missing.stale)}"] if missing.stale else []
    steps.append(f"mkdir -p {_quoted(folders)}")
    steps += [f"cp {_quoted([f'{FOLDER}/{name}/{path}', f'{part}/{path}'])}" for path in missing.reused]
    _inside(phone, " && ".join(steps), HASHING_S)
    for path in missing.sent:
        phone.send(_as_app(f"cat > {shlex.quote(f'{part}/{path}')}"), bundle.path(path), progress)
    arrived = _inside(phone, f"cd {shlex.quote(part)} && sha256sum {_quoted(missing.sha256s)}", HASHING_S)
    if {path: digest for digest, _, path in (line.partition("  ") for line in arrived.splitlines())} != missing.sha256s:
        raise PhoneError(f"{name} did not arrive on the phone {phone.serial} as it was sent; run the command again.")
    whole, old, part = (shlex.quote(name + end) for end in ("", OLD, PART))
    aside = f"if [ -e {whole} ]; then mv {whole} {old}; fi"
    _inside(phone, f"cd {FOLDER} && {aside} && mv {part} {whole} && rm -rf {old}")


def measure(phone: Phone, name: str, say: Callable[[str], None]) -> str:
    """Let the app measure a bundle; `say` is told each figure that was. The profile's text; PhoneError where there is
    none, with the app's own sentence."""
    values: dict[str, str] = {}
    code, last = None, ""
    for line in phone.lines(f"am instrument -w -r -e bundle {shlex.quote(name)} {INSTRUMENTATION}", SILENT_S):
        kind, _, rest = line.partition(": ")
        if kind == "INSTRUMENTATION_CODE":
            code = rest
        elif kind in ("INSTRUMENTATION_STATUS", "INSTRUMENTATION_RESULT"):
            last, _, values[last] = rest.partition("=")
            if last == "measured":
                say(values[last])
        elif not kind.startswith("INSTRUMENTATION_") and last and line.strip():
            values[last] += f" {line.strip()}"
    if "problem" in values:
        raise PhoneError(f"The app did not measure {name}: {values['problem']}")
    if "Error" in values:
        raise PhoneError(f"The app on the phone {phone.serial} cannot be asked to measure; install the present one.")
    if "shortMsg" in values:
        why = values["shortMsg"].rstrip(".")
        raise PhoneError(f"The app ended while it measured {name} ({why}); there may be too little memory.")
    if code != DONE or "profile" not in values:
        raise PhoneError(f"The phone {phone.serial} went away while it measured {name}; run the command again.")
    return _inside(phone, f"cat {shlex.quote(values['profile'])}")


def _as_app(script: str) -> str:
    return f"run-as {PACKAGE} sh -c {shlex.quote(script)}"


def _inside(phone: Phone, script: str, seconds: float | None = None) -> str:
    """Run a script as the app, in the app's folder, and return its output. PhoneError if it fails."""
    ran = phone.shell(_as_app(script), seconds)
    if ran.status != 0:
        lines = (ran.error or ran.output).strip().splitlines() or [f"status {ran.status}"]
        raise PhoneError(f"The phone {phone.serial} refused: {lines[-1].rstrip('.')}.")
    return ran.output


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, paths))
