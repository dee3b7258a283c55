"""Names of models as people write them: what they mean, and fetching what they mean from a hub or an address."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import tiny_model, write_gguf
from web_servers import Hub, Server

from edge import names, web_file
from edge.catalog import Entry
from edge.errors import CatalogError, InputError
from edge.names import AtAddress, InCatalog, OnHub, find

GGUF = b"GGUF" + bytes(range(256)) * 40
FILES = (
    "README.md",
    "m-Q2_K.gguf",
    "m-Q4_K_M.gguf",
    "m-IQ4_XS.gguf",
    "m.Q8_0.gguf",
    "mmproj-m-F16.gguf",
    "F16/m-F16.gguf",
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("org/name", OnHub("org/name")),
        ("org/n.5-a@v1.0", OnHub("org/n.5-a", "v1.0")),
        ("org/name-GGUF:Q4_K_M", OnHub("org/name-GGUF", None, "Q4_K_M")),
        ("org/name-GGUF:q4_k_m@main", OnHub("org/name-GGUF", "main", "q4_k_m")),
        ("hf.co/org/name", OnHub("org/name")),
        ("HF.co/org/name:Q8_0", OnHub("org/name", None, "Q8_0")),
        ("huggingface.co/org/name", OnHub("org/name")),
        ("hf://org/name", OnHub("org/name")),
        ("https://huggingface.co/org/name", OnHub("org/name")),
        ("https://huggingface.co/org/name/tree/main", OnHub("org/name")),
        (
            "https://huggingface.co/org/name/resolve/main/a/m-Q4_0.gguf?download=true",
            OnHub("org/name", None, "a/m-Q4_0.gguf"),
        ),
        ("https://hf.co/org/name/blob/v2/m.gguf", OnHub("org/name", "v2", "m.gguf")),
        ("https://hf.co/org/name-GGUF:Q4_K_M", OnHub("org/name-GGUF", None, "Q4_K_M")),
        ("https://hf.co/org/name/resolve/refs%2Fpr%2F1/a%20b.gguf", OnHub("org/name", "refs/pr/1", "a b.gguf")),
        ("https://huggingface.co/org/name/tree/v2", OnHub("org/name", "v2")),
        ("https://huggingface.co/org/name?show_file_info=m-Q8_0.gguf", OnHub("org/name", None, "m-Q8_0.gguf")),
        ("https://huggingface.co/org/name/tree/main?show_file_info=a%2Fm.gguf", OnHub("org/name", None, "a/m.gguf")),
        ("hf.co/org/name/blob/main/m.gguf", OnHub("org/name", None, "m.gguf")),
        ("huggingface.co/org/name/", OnHub("org/name")),
        ("https://huggingface.co/org/name/tree/-x", OnHub("org/name", "-x")),
        ("https://example.org/a/m.gguf", AtAddress("https://example.org/a/m.gguf")),
        ("http://localhost:8000/m.gguf", AtAddress("http://localhost:8000/m.gguf")),
        *(
            (text, None)
            for text in ("org/m.gguf", "./a", "a/b/c", "~/a", "../a", "a", "a\0b", "x/y.edge", "qwen3:0.7b")
        ),
    ],
)
def test_what_a_name_means(text: str, meant: object) -> None:
    assert find(text) == meant


def test_a_name_of_the_catalog_goes_before_the_others() -> None:
    named = find("SmolLM2-135M-Instruct")
    assert isinstance(named, InCatalog) and isinstance(named.entry, Entry) and named.name == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "http://example.org/m.gguf",
            "Whoever is on the way can change what comes from http://example.org/m.gguf; write https",
        ),
        ("https://example.org/page.html", "is no address of a .gguf file"),
        ("https://example.org/", "is no address of a .gguf file"),
        ("https://huggingface.co/models?search=m", "is no address of a .gguf file"),
        ("https://[bad/x.gguf", "is no address .*; write https"),
        ("https://[1::2::3]/x.gguf", "is no address"),
    ],
)
def test_an_address_of_something_else_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find(text)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("smollm2-135m-instrct", "smollm2-135m-instruct"),
        ("smollm2:135m-instruct", "smollm2-135m-instruct"),
        ("qwen3:0.6", "qwen3:0.6b"),
        ("Qwen3-0.6", "qwen3-0.6b"),
        ("gemma-3-270", "gemma-3-270m"),
        ("entirely-different", None),
    ],
)
def test_the_nearest_name_is_offered(given: str, meant: str | None) -> None:
    assert names.similar(given) == meant


@pytest.fixture
def gguf_hub(hub: Hub) -> Hub:
    hub.files.clear()
    hub.files.update({name: GGUF + name.encode() for name in FILES})
    return hub


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q2_k", "m-Q2_K.gguf"),
        ("Q8_0", "m.Q8_0.gguf"),
        ("IQ4_XS", "m-IQ4_XS.gguf"),
        ("F16", "F16/m-F16.gguf"),
        ("m.Q8_0.gguf", "m.Q8_0.gguf"),
        ("F16/m-F16.gguf", "F16/m-F16.gguf"),
    ],
)
def test_the_file_of_a_quantization_is_fetched_alone(gguf_hub: Hub, tag: str | None, file: str) -> None:
    said = list[str]()
    path = OnHub("org/toy", None, tag).fetch(say=said.append)
    assert path.read_bytes() == GGUF + file.encode() and path.as_posix().endswith(file)
    assert said == [f"{OnHub('org/toy', None, tag).name} is the file {file} of org/toy on the hub."]
    folder = path.parents[file.count("/")]
    assert [each.relative_to(folder).as_posix() for each in folder.rglob("*.gguf")] == [file]


@pytest.mark.parametrize("tag", ["Q4_K", "Q4", "K_M", "XS", "Q5_K_M", "mmproj-m-F16.gguf", "../../secret.gguf"])
def test_a_quantization_that_is_not_there_is_said_with_those_that_are(gguf_hub: Hub, tag: str) -> None:
    with pytest.raises(CatalogError, match=r"has no \.gguf file .*; it has F16, IQ4_XS, Q2_K, Q4_K_M, Q8_0\."):
        OnHub("org/toy", None, tag).fetch()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library writes what it has read each thousand bytes, and not each 10 MB."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)


@pytest.mark.usefixtures("small_pieces")
def test_a_file_on_the_hub_that_breaks_off_is_resumed(gguf_hub: Hub) -> None:
    gguf_hub.breaks = [5000]
    path = OnHub("org/toy", None, "Q8_0").fetch()
    assert path.read_bytes() == GGUF + b"m.Q8_0.gguf"
    assert gguf_hub.ranges == ["", "bytes=5000-"]


def test_all_parts_of_a_file_in_parts_are_fetched(gguf_hub: Hub) -> None:
    parts = [f"big/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    gguf_hub.files.update({name: GGUF for name in parts})
    path = OnHub("org/toy", None, "Q6_K").fetch()
    assert path.name == "m-Q6_K-00001-of-00003.gguf" and len(list(path.parent.iterdir())) == 3


def test_the_first_of_what_is_preferred_is_taken_and_else_any(gguf_hub: Hub) -> None:
    del gguf_hub.files["m-Q4_K_M.gguf"]
    assert OnHub("org/toy").fetch().name == "m-IQ4_XS.gguf"
    del gguf_hub.files["m-IQ4_XS.gguf"]
    assert OnHub("org/toy").fetch().name == "m.Q8_0.gguf"
    gguf_hub.files.clear()
    gguf_hub.files["m-TQ1_0.gguf"] = GGUF
    assert OnHub("org/toy").fetch().name == "m-TQ1_0.gguf"
    gguf_hub.files.clear()
    gguf_hub.files["README.md"] = b""
    with pytest.raises(CatalogError, match=r"org/toy on the hub has neither a model's directory nor a \.gguf file"):
        OnHub("org/toy").fetch()


def test_a_directory_goes_before_files_next_to_it(hub: Hub) -> None:
    hub.files["m-Q4_K_M.gguf"] = GGUF
    path = OnHub("org/toy").fetch()
    assert path.is_dir() and {each.name for each in path.iterdir()} == {"config.json", "model.safetensors"}
    assert OnHub("org/toy", None, "Q4_K_M").fetch().is_file()


@pytest.mark.parametrize("name", ["training_args.bin", "imatrix.bin", "optimizer.bin", "scheduler.bin"])
def test_notes_of_a_training_make_no_directory_of_a_model(gguf_hub: Hub, name: str) -> None:
    gguf_hub.files.update({"config.json": b"{}", name: b"x"})
    assert OnHub("org/toy").fetch().name == "m-Q4_K_M.gguf"


class Web(Server):
    """A server that also redirects."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web(GGUF)
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_file_at_an_address_is_fetched_once_and_resumed(web: Web) -> None:
    address = f"{web.address}/some%20where/m.Q4_0.gguf?x=1"
    web.breaks = [len(GGUF), 1000, 2000]  # of what is asked first, and of two tries
    path = AtAddress(address).fetch()
    assert path.read_bytes() == GGUF and path.name == "m.Q4_0.gguf"
    assert "bytes=1000-" in web.requests
    web.requests.clear()
    assert AtAddress(address).fetch() == AtAddress(address).local() == path and web.requests == []
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fx.gguf", "%2e%2e.gguf", "a%00b.gguf", "-rf.gguf", "%1b[31m.gguf", "x" * 300 + ".gguf"]
)
def test_no_address_names_a_file_elsewhere(web: Web, own_cache: Path, name: str) -> None:
    path = web_file.place_of(f"{web.address}/{name}")
    assert path.parent.parent == own_cache / "models" / "web" and path.name[0] not in ".-"
    assert path.name.isascii() and path.name.isprintable() and len(path.name) < 120 and "/" not in path.name


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda web: setattr(web, "content", b"<!DOCTYPE html> ..."), "is no GGUF file: it begins with b'<!DO'"),
        (lambda web: setattr(web, "content", b""), "the server answers 416"),
        (lambda web: setattr(web, "status", 404), "the server answers 404"),
        (lambda web: web.http.server_close() or web.http.shutdown(), "it cannot be reached"),
    ],
)
def test_what_is_no_gguf_file_is_not_kept(web: Web, own_cache: Path, harm: object, sentence: str) -> None:
    harm(web)  # type: ignore[operator]
    with pytest.raises(CatalogError, match=sentence):
        AtAddress(f"{web.address}/m.gguf").fetch()
    assert [path for path in (own_cache / "models").rglob("*") if path.is_file()] == []


def test_a_file_that_the_disk_has_no_room_for_is_refused_before_it_is_fetched(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage())
    with pytest.raises(CatalogError, match="has 0 MB, and .* has room for 0 MB; free some, or set EDGE_HOME"):
        AtAddress(f"{web.address}/m.gguf").fetch()
    assert len(web.requests) == 1


class _Usage:
    free = 100


def test_a_redirection_from_https_to_anything_less_is_not_followed() -> None:
    import urllib.request

    from edge.download import _Redirects

    request = urllib.request.Request("https://example.org/m.gguf")
    for address in ("http://example.org/m.gguf", "ftp://example.org/m.gguf", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="it leads from https"):
            _Redirects().redirect_request(request, None, 302, "Found", {}, address)
    onward = _Redirects().redirect_request(request, None, 302, "Found", {}, "https://cdn.example.org/m.gguf")
    assert onward is not None and onward.full_url == "https://cdn.example.org/m.gguf"


def test_a_server_that_leads_to_a_file_of_this_machine_gets_nothing(own_cache: Path, tmp_path: Path) -> None:
    secret = write_gguf(tmp_path / "secret.gguf", tiny_model("llama"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", secret.as_uri())
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(CatalogError, match="cannot be fetched"):
            AtAddress(f"http://127.0.0.1:{server.server_port}/m.gguf").fetch()
        server.shutdown()
    assert [path for path in own_cache.rglob("*") if path.is_file()] == []
