"""From token ids to text in a stream, stop strings, prompts, and the tokenizer of a bundle."""

from __future__ import annotations

import dataclasses
import json
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_engine import BOS, END, START, byte_bundle, with_tokens
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.manifest import TextFormat
from edge.runtime.text.tokenizer import LONG_WINDOW, Detokenizer, StopStrings, Text

TEXTS = [
    "Plain English, with spaces  and\n\nlines.",
    "Grüße aus Köln, naïve café",
    "日本語のテキストと emoji 🙂👩‍👩‍👧 end",
    "🙂",
    " leading and trailing ",
    "",
]


def byte_level() -> Tokenizer:
    """A byte-level vocabulary: every byte, some words, and tokens that end within a character."""
    from fake_engine import bytes_to_characters

    letters = bytes_to_characters()
    written = [*letters, *("".join(letters[b] for b in word) for word in [b"the", b" the", b"\xe6\x97", b"\xa5\xe6"])]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(written)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def sentencepiece(strip: bool) -> Tokenizer:
    """A SentencePiece vocabulary as Llama 2 (`strip`) and Gemma have it: spaces as ▁, unknown characters as bytes."""
    words = ["▁", "▁Hello", "▁world", "Hello", "lo", "!", "▁▁", "é", "日"]
    vocab = {t: i for i, t in enumerate(["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


TOKENIZERS = {
    "byte level": byte_level(),
    "Llama 2": sentencepiece(strip=True),
    "Gemma": sentencepiece(strip=False),
}


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    stream = Detokenizer(tokenizer.decode, special_ids(tokenizer))
    return [*(stream.push(i) for i in ids), stream.flush()]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids, a character or a byte at a time."""
    ids = []
    for character in text:
        whole = tokenizer.token_to_id("▁" if character == " " else character)
        if whole is not None and tokenizer is not TOKENIZERS["byte level"]:
            ids.append(whole)
        elif tokenizer is TOKENIZERS["byte level"]:
            ids.extend(character.encode())
        else:
            ids.extend(tokenizer.token_to_id(f"<0x{b:02X}>") for b in character.encode())
    return ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_and_show_no_unfinished_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = ids_of(tokenizer, text)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-1] == "", "whole characters wait for no flush"


def test_an_emoji_over_four_tokens_comes_whole_with_the_last_one() -> None:
    assert pieces_of(TOKENIZERS["byte level"], "a🙂b".encode()) == ["a", "", "", "", "🙂", "b", ""]
    gemma = TOKENIZERS["Gemma"]
    assert pieces_of(gemma, ids_of(gemma, "é🙂!")) == ["é", "", "", "", "🙂", "!", ""]


def test_a_leading_space_is_dropped_at_the_start_alone() -> None:
    llama = TOKENIZERS["Llama 2"]
    ids = [llama.token_to_id(t) for t in ("▁Hello", "▁world", "!", "▁", "▁Hello", "</s>", "▁world")]
    assert pieces_of(llama, ids) == ["Hello", " world", "!", " ", " Hello", "", " world", ""]
    ids = [llama.token_to_id(t) for t in ("▁", "▁", "▁▁", "▁Hello")]
    assert "".join(pieces_of(llama, ids)) == llama.decode(ids) == "    Hello"


def test_special_tokens_do_not_make_a_space_a_leading_one() -> None:
    llama = TOKENIZERS["Llama 2"]
    hello, end, world = (llama.token_to_id(t) for t in ("▁Hello", "</s>", "▁world"))
    ids = [hello, *[end] * 5 * LONG_WINDOW, world]
    assert "".join(pieces_of(llama, ids)) == llama.decode(ids) == "Hello world"


def test_ids_beyond_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    dims = dataclasses.replace(bundle.manifest.dims, vocab_size=300)
    bundle = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, dims=dims))
    stream = Text(bundle).detokenizer()
    ids = [0xC3, *range(259, 300), 0xA9]
    assert "".join(map(stream.push, ids)) + stream.flush() == "é"


def test_a_vocabulary_that_a_manifest_only_claims_takes_no_memory(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    dims = dataclasses.replace(bundle.manifest.dims, vocab_size=1 << 24)
    claimed = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, dims=dims))
    tracemalloc.start()
    try:
        stream = Text(claimed).detokenizer()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000 and stream.push(1 << 23) == ""


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_random_tokens_add_up(name: str, seed: int) -> None:
    tokenizer = TOKENIZERS[name]
    choose = random.Random(seed)
    ids = [choose.randrange(tokenizer.get_vocab_size()) for _ in range(300)]
    if name != "byte level":  # a byte-fallback decoder spoils whole runs for one byte: give it whole characters
        letters = [i for i in ids if not 1 <= i <= 256]
        ids = [i for letter in letters for i in (letter, *ids_of(tokenizer, choose.choice("é日ö🙂")))]
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_byte_that_is_no_text_becomes_one_replacement_and_spoils_nothing_else(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    wrong = ids_of(tokenizer, "🙂")[:2]
    ids = [*ids_of(tokenizer, "日ö"), *wrong, *ids_of(tokenizer, "!日ö")]
    text = "".join(pieces_of(tokenizer, ids))
    assert text.replace("\ufffd", "") == "日ö!日ö"
    assert 1 <= text.count("\ufffd") <= 2


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_unfinished_character_at_the_end_is_flushed_as_a_replacement(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    pieces = pieces_of(tokenizer, ids_of(tokenizer, "ab🙂")[:-1])
    assert "".join(pieces[:-1]) == "ab"
    assert pieces[-1].strip("\ufffd") == "" and pieces[-1]


@pytest.mark.parametrize("stuck", [b"\xf0", b"\x80", b"a", "日".encode(), b"\xa5\xe6\x97"])
def test_each_token_costs_decoding_a_few_whatever_came_before(stuck: bytes) -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode(errors="replace")

    stream = Detokenizer(decode, frozenset())
    ids = list(b"\xe6\x97" + 200 * stuck)
    text = "".join(stream.push(i) for i in ids) + stream.flush()
    assert text == bytes(ids).decode(errors="replace")
    assert longest <= 2 * LONG_WINDOW


def test_tokens_that_straddle_characters_stream_with_a_bounded_window() -> None:
    tokenizer, longest = TOKENIZERS["byte level"], 0
    first, straddling, last = tokenizer.token_to_id("æĹ"), tokenizer.token_to_id("¥æ"), 0x97

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer.decode(ids)

    stream = Detokenizer(decode, frozenset())
    ids = [first, *([straddling, last] * 100), 0xA5]  # 日 a hundred times, never a token that ends with one
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) == 101 * "日"
    assert longest <= 2 * LONG_WINDOW
    assert sum(map(bool, pieces)) == 101, "each character is shown when its last byte comes"


def shown(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    finder, out = StopStrings(stops), []
    for piece in pieces:
        text, found = finder.push(piece)
        out.append(text)
        if found:
            return out, True
    return [*out, finder.flush()], False


def test_a_stop_string_that_spans_pieces_is_found_and_never_shown() -> None:
    assert shown(["END"], ["one E", "N", "D two"]) == (["one ", "", ""], True)
    assert shown(["\n\n"], ["one\n", "two\n", "\nthree"]) == (["one", "\ntwo", ""], True)


def test_text_that_only_begins_a_stop_string_is_shown_as_soon_as_that_is_sure() -> None:
    assert shown(["END"], ["E", "NE", "NX", "EN"]) == (["", "EN", "ENX", "", "EN"], False)


def test_the_stop_string_that_begins_first_wins() -> None:
    assert shown(["world", "lo"], ["hello world"]) == (["hel"], True)
    assert shown(["aab"], ["aa", "aab"]) == (["", "aa"], True)


def test_without_stop_strings_text_passes_as_it_is() -> None:
    assert shown([], ["a", "", "b"]) == (["a", "", "b", ""], False)


@pytest.mark.parametrize("seed", range(50))
def test_stop_strings_cut_where_a_search_in_the_whole_text_does(seed: int) -> None:
    choose = random.Random(seed)
    text = "".join(choose.choices("ab", k=40))
    stops = ["".join(choose.choices("ab", k=choose.randint(1, 6))) for _ in range(2)] + ["abababab"]
    pieces, rest = [], text
    while rest:
        size = choose.randint(0, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    places = [text.find(s) for s in stops if s in text]
    out, found = shown(stops, pieces)
    # Pieces end the search early: a stop string that is complete first wins over one that begins first.
    assert found == bool(places)
    ends = min((text.find(s) + len(s) for s in stops if s in text), default=len(text))
    assert text.startswith("".join(out)) and len("".join(out)) <= ends
    if not found:
        assert "".join(out) == text
    else:
        assert not any(s in "".join(out) for s in stops)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InputError, match="stop string is empty"):
        StopStrings(["a", ""])


def test_special_tokens_written_in_the_text_are_recognised(tmp_path: Path) -> None:
    text = Text(byte_bundle(tmp_path))
    assert text.encode("<start>hi<end>") == [START, *b"hi", END]
    assert text.decode([START, *b"hi", END]) == "hi"


def test_bos_comes_first_and_once(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    text = Text(bundle)
    assert text.encode_prompt("hi") == text.encode_prompt("<bos>hi") == [BOS, *b"hi"]
    assert Text(with_tokens(bundle, add_bos=False)).encode_prompt("hi") == list(b"hi")
    assert Text(with_tokens(bundle, add_bos=False)).encode_prompt("<bos>hi") == [BOS, *b"hi"]


def test_half_a_surrogate_pair_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        Text(byte_bundle(tmp_path)).encode("ab\udcff")


def test_a_tokenizer_that_cannot_be_read_gets_one_sentence(paper_bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Text(paper_bundle)


def test_a_tokenizer_that_panics_gets_one_sentence(tmp_path: Path) -> None:
    """Rust's panics are no Exceptions: here at its base64, elsewhere in encoding."""
    bundle = byte_bundle(tmp_path)
    damage(bundle, normalizer={"type": "Precompiled", "precompiled_charsmap": "no base64!"})
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read as a tokenizer \(Precompiled"):
        Text(bundle)


def test_a_tokenizer_of_more_memory_than_it_has_bytes_gets_one_sentence(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    damage(bundle, normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w" + "A" * 100})
    with pytest.raises(BundleError, match="its character map says that it has 4,294,967,295 bytes and is shorter"):
        Text(bundle)


def test_a_text_that_a_damaged_tokenizer_cannot_encode_gets_one_sentence(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    damage(bundle, model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None})
    with pytest.raises(BundleError, match="cannot be read as a tokenizer .*`unk_id` is missing"):
        Text(bundle).encode("b")


def test_brackets_without_an_end_get_one_sentence(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path)
    bundle.path("tokenizer.json").write_text("[" * 100_000)
    manifest = dataclasses.replace(bundle.manifest, text=TextFormat())
    for kind in (bundle, dataclasses.replace(bundle, manifest=manifest)):
        with pytest.raises(BundleError, match="cannot be read as a tokenizer"):
            Text(kind)


def damage(bundle: Bundle, **changes: object) -> None:
    path = bundle.path("tokenizer.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_real_tokenizer_streams_what_it_decodes(tiny_bundle: Bundle) -> None:
    text = Text(tiny_bundle)
    for sample in TEXTS:
        ids = text.encode(sample)
        stream = text.detokenizer()
        pieces = [*map(stream.push, ids), stream.flush()]
        assert "".join(pieces) == sample and "\ufffd" not in sample
