"""The page of a profile: whole in itself, safe with any name, and looked at in a real browser."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from browser import Browser
from profile_example import example_profile

from edge.profile.html import page
from edge.runtime.costs.record import Profile

KINDS = ("decoder", "text", "speech")
PREFILL, PHONE = (1280, 900), (390, 844)
# Everything that sticks out of the window, but for what lies in a table that scrolls by itself.
STICKING_OUT = """[...document.querySelectorAll("body *")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && !each.closest(".table") && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(each => `${each.tagName} ${each.getAttribute("class")} ${each.textContent.trim().slice(0, 40)}`)"""
SHOWN = """[...document.querySelectorAll("figure")].filter(each => each.offsetHeight).map(each => each.id)"""
SMALL_TEXT = """[...document.querySelectorAll("main *, svg text")].filter(each => each.childElementCount === 0
  && each.textContent.trim() && parseFloat(getComputedStyle(each).fontSize) < 11).length"""
ALL = ["ttft", "decode", "curve", "relative", "treemap", "layers", "roofline", "parts", "skipped", "memory",
       "sustained", "usage", "notes"]  # fmt: skip


def bare(profile: Profile) -> Profile:
    """A profile of which only what every one has is left."""
    lists = "ttft", "decode", "curve", "usage", "ops", "skipped", "notes"
    nothing: dict[str, list[object]] = {each: [] for each in lists}
    missing = dict.fromkeys(("sustained", "load", "memory", "noise", "peaks"))
    return dataclasses.replace(profile, **nothing, **missing)  # type: ignore[arg-type]


def named(profile: Profile, name: str) -> Profile:
    return dataclasses.replace(profile, bundle=dataclasses.replace(profile.bundle, name=name))


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_refers_to_nothing_outside(kind: str) -> None:
    text = page(example_profile(kind=kind))
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert set(re.findall(r"(?:src|href)\s*=\s*\"([^\"]*)\"", text)) == {"data:,"}
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    assert not re.search(r"%[A-Z]+%", text)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = browser.installed()
    if chromium is None:
        pytest.skip("the page is looked at with Chromium, and none is installed")
    with Browser(chromium, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def seen(window: Browser) -> Iterator[Browser]:
    window.errors.clear()
    yield window
    assert window.errors == []


def write(folder: Path, profile: Profile) -> Path:
    path = folder / "report.html"
    path.write_text(page(profile), encoding="utf-8")
    return path


@pytest.mark.parametrize("size", [PREFILL, PHONE], ids=["prefill", "phone"])
@pytest.mark.parametrize(("kind", "dark"), [*((kind, False) for kind in KINDS), ("decoder", True)])
def test_every_figure_is_drawn_and_fits_the_window(
    kind: str, size: tuple[int, int], dark: bool, seen: Browser, tmp_path: Path
) -> None:
    seen.open(write(tmp_path, example_profile(kind=kind)), *size, phone=size == PHONE, dark=dark)
    assert seen.run(SHOWN) == ALL
    assert seen.run("document.documentElement.scrollWidth") == seen.run("innerWidth") == size[0]
    assert seen.run(STICKING_OUT) == []
    assert seen.run(SMALL_TEXT) == 0
    assert seen.run("document.querySelectorAll('.chart svg').length") == 9
    assert "NaN" not in seen.run("document.querySelector('main').outerHTML")
    ground = seen.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (brightness < 60) if dark else (brightness > 220)
    shot = tmp_path / "page.png"
    seen.screenshot(shot)
    assert shot.stat().st_size > 20_000


def test_the_pointer_finds_figures(seen: Browser, tmp_path: Path) -> None:
    seen.open(write(tmp_path, example_profile()), *PREFILL)
    for selector, expected in [("#decode svg", "p99"), ("#curve svg", "context 512"), ("#ttft svg", "tokens")]:
        seen.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        seen.settle()
        x, y = seen.run(
            f"(box => [box.x + box.width / 2, box.y + box.height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        seen.point(x, y)
        tip = seen.run("[tip.hidden, tip.textContent, tip.getBoundingClientRect().right <= innerWidth]")
        assert tip[0] is False and expected in tip[1] and tip[2] is True
    seen.point(5, 5)
    assert seen.run("tip.hidden") is True


def test_another_step_is_shown_when_it_is_chosen(seen: Browser, tmp_path: Path) -> None:
    seen.open(write(tmp_path, example_profile()), *PREFILL)
    before = seen.run("document.querySelector('#treemap svg').innerHTML")
    assert seen.run("document.querySelectorAll('#steps button').length") == 2
    assert "15,000 %" not in before
    seen.run("document.querySelectorAll('#steps button')[1].click()")
    after = seen.run("document.querySelector('#treemap svg').innerHTML")
    assert before != after and "lm_head" not in after
    pressed = "[...document.querySelectorAll('#steps button')].map(each => each.getAttribute('aria-pressed'))"
    assert seen.run(pressed) == ["false", "true"]


def test_figures_are_redrawn_when_the_window_changes(seen: Browser, tmp_path: Path) -> None:
    seen.open(write(tmp_path, example_profile()), *PREFILL)
    width = "document.querySelector('#curve svg').viewBox.baseVal.width"
    before = seen.run(width)
    seen.call("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
    seen.settle()
    assert seen.run(width) != before and seen.run(STICKING_OUT) == []


def test_a_name_is_text_whatever_it_holds(seen: Browser, tmp_path: Path) -> None:
    name = "</script><script>window.caught = 1</script><img src=x onerror=caught=1>%CHARTS%&amp;\u2028" + "m" * 200
    seen.open(write(tmp_path, named(example_profile(), name)), *PHONE, phone=True)
    assert seen.run("window.caught === undefined && document.querySelector('h1').textContent") == name
    assert seen.run(STICKING_OUT) == []


def test_what_a_phone_may_write_is_drawn(seen: Browser, tmp_path: Path) -> None:
    """No context yet, rows in any order, times of nothing, and a machine whose p99 is far off."""
    full = example_profile()
    wild = dataclasses.replace(full.decode[0].time, p99_ms=9e4, min_ms=0.0, jitter_ms=0.0)
    decode = [dataclasses.replace(full.decode[0], context=0, time=wild), *reversed(full.decode)]
    nothing = dataclasses.replace(full.ops[0], us=0.0, flops=0, bytes=0)
    odd = dataclasses.replace(full, decode=decode, ttft=[*reversed(full.ttft)], ops=[nothing, *full.ops])
    seen.open(write(tmp_path, odd), *PHONE, phone=True)
    assert seen.run(SHOWN) == ALL and seen.run(STICKING_OUT) == []
    assert not re.search("NaN|Infinity|undefined", seen.run("document.querySelector('main').outerHTML"))


def test_what_was_not_measured_is_not_shown(seen: Browser, tmp_path: Path) -> None:
    seen.open(write(tmp_path, bare(example_profile())), *PHONE, phone=True)
    assert seen.run(SHOWN) == [] and seen.run("document.querySelectorAll('svg').length") == 0
    assert seen.run("document.querySelector('h1').textContent") == "paper"
    full = example_profile()
    one = dataclasses.replace(full, ttft=full.ttft[:1], decode=full.decode[:1], curve=full.curve[:1], peaks=None)
    seen.open(write(tmp_path, one), *PREFILL)
    assert seen.run(SHOWN) == [each for each in ALL if each not in {"relative", "roofline"}]
    assert "NaN" not in seen.run("document.querySelector('main').outerHTML")
