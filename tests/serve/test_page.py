"""The page of a server, looked at in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import browser
import httpx
import pytest
from browser import Browser
from page_helpers import DESK, PHONE, SAID, STICKING_OUT, until
from running_server import running

from edge.bundle import Bundle


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(pristine_tiny_bundle) as client:
        yield client


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory, client: httpx.Client) -> Iterator[Browser]:
    chromium = browser.installed()
    if chromium is None:
        pytest.skip("the page is looked at with Chromium, and none is installed")
    with Browser(chromium, tmp_path_factory.mktemp("chromium")) as found:
        found.server = str(client.base_url)
        yield found


@pytest.fixture
def seen(window: Browser, client: httpx.Client) -> Iterator[Browser]:
    window.errors.clear()
    window.open(str(client.base_url), *DESK)
    until(window, "document.getElementById('model').options.length === 1")
    yield window
    assert window.errors == []


def say(window: Browser, text: str) -> None:
    window.run(f"document.getElementById('message').value = {text!r}")
    window.run("document.getElementById('send').click()")


def answered(window: Browser) -> None:
    until(window, "!document.getElementById('send').hidden && document.querySelector('.figures') !== null")


def test_the_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    for name in ("page.html", "page.js", "page.css"):
        text = (files("edge.serve") / name).read_text(encoding="utf-8")
        assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
        assert "innerHTML" not in text and "eval(" not in text
    response = client.get("/")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["content-type"].startswith("text/html")
    assert client.get("/page.js").headers["content-type"].startswith("text/javascript")


def test_a_talk_is_shown_as_it_comes(seen: Browser) -> None:
    seen.run("document.getElementById('most').value = 12; document.getElementById('temperature').value = 0")
    say(seen, "The <b>moon</b>")
    answered(seen)
    question, answer = seen.run(SAID)
    assert question == "The <b>moon</b>" and answer
    seen.run("document.getElementById('again').click()")
    answered(seen)
    assert seen.run(SAID) == [question, answer]  # at temperature 0 the same
    say(seen, "And the tide?")
    until(seen, f"{SAID}.length === 4")
    answered(seen)
    seen.run("document.getElementById('new').click()")
    assert seen.run(SAID) == []


def test_an_answer_can_be_stopped(seen: Browser) -> None:
    say(seen, "The moon")
    until(seen, "!document.getElementById('stop').hidden")
    seen.run("document.getElementById('stop').click()")
    until(seen, "!document.getElementById('send').hidden")


def test_what_the_server_refuses_is_told(seen: Browser) -> None:
    say(seen, "moon " * 2000)
    told = until(seen, "document.getElementById('state').textContent")
    assert "tokens and the context holds" in told
    assert [error for error in seen.errors if "400" not in error] == []  # the browser tells of the status
    seen.errors.clear()


@pytest.mark.parametrize(("size", "dark"), [(PHONE, False), (PHONE, True), (DESK, True)])
def test_it_fits_the_window(
    size: tuple[int, int], dark: bool, seen: Browser, client: httpx.Client, tmp_path: Path
) -> None:
    seen.open(str(client.base_url), *size, phone=size == PHONE, dark=dark)
    until(seen, "document.getElementById('model').options.length === 1")
    seen.run("document.getElementById('settings').open = true; document.getElementById('most').value = 5")
    say(seen, "m" * 300)
    answered(seen)
    assert seen.run(STICKING_OUT) == []
    assert seen.run("document.documentElement.scrollWidth") == size[0]
    seen.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5_000


def test_a_screen_reader_finds_everything_by_name(seen: Browser) -> None:
    nodes = seen.call("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
    for role, name in [
        ("log", "Conversation"),
        ("textbox", "Message"),
        ("combobox", "Model"),
        ("button", "Send"),
        ("button", "New chat"),
        ("heading", "edge"),
    ]:
        assert any(r.lower() == role and n.strip() == name for r, n in named), (role, name, sorted(named))
    unnamed = [r for r, n in named if r in ("button", "textbox", "combobox", "spinbutton") and not n.strip()]
    assert unnamed == []
