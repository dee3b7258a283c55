"""The vocabulary in a GGUF file -> a tokenizer.json.

A GGUF file names one of llama.cpp's tokenizers and, for byte-level ones, the rule that splits text before merging. Both
are built here from the parts of `tokenizers`. Special tokens are added tokens, so that they are matched whole; Phi-3's
also match the white space after them.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.gguf_splits import GPT2, SPLITS, UNSAID, Split, eats_space, guessed
from edge.export.checkpoint.vocabulary_sizes import check_character_map, check_lengths
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.facts.gguf_header import GGUFHeader
from edge.manifest import Tokens

T = TypeVar("T", int, float, str, bool)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"  # SentencePiece's mark for a space
_PIECES = ("llama", "gemma4")  # tokenizers of SentencePiece's BPE: with scores, and with the merges themselves

# Tokens that end an answer under whatever template the model was trained with; a file names only one of them.
_END_OF_ANSWER = {
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>")
}


def tokenizer_of(header: GGUFHeader) -> TokenizerFiles:
    """Tokenizer, chat template and special tokens of the file.

    Raises:
        CheckpointError: no vocabulary, a tokenizer or splitting rule that is not known here, or ids out of range.
    """
    vocabulary = _Vocabulary(header)
    kind = vocabulary.field("model", str)
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece, "t5": _unigram}
    build = kinds.get(kind or "")
    if kind is None or build is None:
        known = ", ".join(kinds)
        raise CheckpointError(f"{header.path} has a tokenizer of kind {kind!r}; known in GGUF files are: {known}.")
    try:
        tokenizer = build(vocabulary)
        tokenizer.add_special_tokens(vocabulary.added(_UNKNOWN, _CONTROL))
        tokenizer.add_tokens(vocabulary.added(_USER_DEFINED))
    except CheckpointError:
        raise
    except Exception as e:  # tokenizers raises bare Exceptions
        raise CheckpointError(
            f"{header.path} holds a vocabulary that is no tokenizer ({on_one_line(e)}); fetch it again."
        ) from None
    return TokenizerFiles(
        json=tokenizer.to_str(),
        chat_template=header.value("tokenizer.chat_template", str),
        tokens=_special(vocabulary, kind),
        built=tokenizer,
    )


class _Vocabulary:
    """The tokens of the file with their types, scores and merges."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.tokens = self.fields("tokens", str)
        if not self.tokens:
            raise CheckpointError(f"{header.path} holds no tokenizer (tokenizer.ggml.tokens); convert the model again.")
        check_lengths(self.tokens, header.path)
        if self.field("model", str) in _PIECES:
            # Runs of spaces are spelled with spaces, all other pieces with the mark.
            self.tokens = [t.replace(" ", _SPACE) if not t.strip(" ") else t for t in self.tokens]
        self.types = self.fields("token_type", int) or [_NORMAL] * len(self.tokens)
        self.scores = self.fields("scores", float)
        for name, values in (("token_type", self.types), ("scores", self.scores)):
            if values and len(values) != len(self.tokens):
                raise CheckpointError(
                    f"{header.path} is damaged: tokenizer.ggml.{name} has {len(values)} entries for "
                    f"{len(self.tokens)} tokens; fetch it again."
                )
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def field(self, name: str, kind: type[T]) -> T | None:
        return self.header.value(f"tokenizer.ggml.{name}", kind)

    def fields(self, name: str, kind: type[T]) -> list[T]:
        return self.header.values(f"tokenizer.ggml.{name}", kind)

    def token_id(self, name: str) -> int | None:
        """A special token's id by its metadata name (bos, eos, ...)."""
        index = self.field(f"{name}_token_id", int)
        if index is not None and not 0 <= index < len(self.tokens):
            raise CheckpointError(
                f"{self.header.path}: {name}_token_id is {index}, and the vocabulary has {len(self.tokens)} tokens."
            )
        return index

    def added(self, *kinds: int) -> list[AddedToken]:
        """Tokens of these types, to be matched whole. Runs of spaces are matched after spaces became the mark."""
        special = _CONTROL in kinds
        name, architecture = (self.header.value(f"general.{key}", str) for key in ("name", "architecture"))
        sentencepiece = self.field("model", str) in _PIECES

        def eats(token: str) -> bool:
            return eats_space(token, name or "", architecture, sentencepiece=sentencepiece)

        return [
            AddedToken(token, special=special, normalized=not token.strip(_SPACE), rstrip=eats(token))
            for token, type_ in zip(self.tokens, self.types, strict=True)
            if type_ in kinds
        ]


def _special(vocabulary: _Vocabulary, kind: str) -> Tokens:
    bos = vocabulary.token_id("bos")
    ends = [vocabulary.token_id(name) for name in ("eos", "eot", "eom")]
    ends += [
        i
        for i, (token, type_) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if token in _END_OF_ANSWER and type_ in (_CONTROL, _USER_DEFINED)
    ]
    # Files that do not say: llama.cpp adds it for SentencePiece vocabularies and some byte-level ones.
    default = kind in _PIECES or (kind == "gpt2" and _rule(vocabulary).add_bos)
    stated = vocabulary.field("add_bos_token", bool)
    return Tokens(
        bos=bos,
        eos=list(dict.fromkeys(e for e in ends if e is not None)),
        pad=vocabulary.token_id("padding"),
        add_bos=bos is not None and (default if stated is None else stated),
    )


def _rule(vocabulary: _Vocabulary) -> Split:
    """How a byte-level vocabulary splits text."""
    header = vocabulary.header
    name = vocabulary.field("pre", str)
    if name in UNSAID:
        architecture = header.value("general.architecture", str)
        name = guessed(architecture, len(vocabulary.tokens))
    if name is None:
        return GPT2  # `guesses` says so
    if name not in SPLITS:
        raise CheckpointError(
            f"{header.path} splits text by the rule {name[:60]!r}, which is not known here; known are: "
            f"{', '.join(sorted(SPLITS))}."
        )
    return SPLITS[name]


def guesses(header: GGUFHeader) -> list[str]:
    """What a person should know of a tokenizer whose file does not say how text is split, in sentences."""
    kind, named = (header.value(f"tokenizer.ggml.{key}", str) for key in ("model", "pre"))
    if kind != "gpt2" or named not in UNSAID:
        return []
    count = len(header.values("tokenizer.ggml.tokens", str))
    name = guessed(header.value("general.architecture", str), count)
    how = "as GPT-2 does; its answers may be worse than the model's" if name is None else f"by the rule {name}"
    return [f"The file does not say how it splits text (tokenizer.ggml.pre), so it is split {how}."]


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    """Byte-level BPE: GPT-2, SmolLM, Llama 3, Qwen."""
    rule = _rule(vocabulary)
    pairs = (merge.partition(" ") for merge in vocabulary.fields("merges", str))
    merges = [(left, right) for left, _, right in pairs]
    bpe = models.BPE(
        vocab=vocabulary.ids,
        merges=merges,
        ignore_merges=rule.ignore_merges,
    )
    tokenizer = Tokenizer(bpe)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """SentencePiece's BPE: Llama 2, Mistral, Gemma, Phi-3. The file has scores; `tokenizers` wants the merges that
    they imply. Files of Gemma 4 have the merges, too."""
    tokens = vocabulary.tokens
    unknown = vocabulary.token_id("unknown")
    pairs = (merge.partition(" ") for merge in vocabulary.fields("merges", str))
    stated = [(left, right) for left, _, right in pairs]
    bpe = models.BPE(
        vocab=vocabulary.ids,
        merges=stated or _implied_merges(vocabulary),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    prefix = vocabulary.field("add_space_prefix", bool) is not False
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _unigram(vocabulary: _Vocabulary) -> Tokenizer:
    """SentencePiece's Unigram: T5."""
    scores, unknown = vocabulary.scores, vocabulary.token_id("unknown")
    if not scores:
        raise _lacks_scores(vocabulary)
    scored = list(zip(vocabulary.tokens, scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=False))
    steps: list[normalizers.Normalizer] = []
    if charsmap := vocabulary.fields("precompiled_charsmap", int):
        characters = np.array(charsmap).astype(np.uint8).tobytes()
        check_character_map(characters, vocabulary.header.path)
        steps.append(normalizers.Precompiled(characters))
    if vocabulary.field("remove_extra_whitespaces", bool) is not False:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    prefix = "never" if vocabulary.field("add_space_prefix", bool) is False else "always"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=prefix)
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=prefix)
    end = vocabulary.token_id("eos")
    if end is not None and vocabulary.field("add_eos_token", bool) is not False:
        token = vocabulary.tokens[end]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, end)])
    return tokenizer


def _lacks_scores(vocabulary: _Vocabulary) -> CheckpointError:
    path = vocabulary.header.path
    return CheckpointError(f"{path} lacks tokenizer.ggml.scores in its metadata; convert it again.")


def _implied_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first: what SentencePiece's merging does with scores."""
    tokens, ids, scores = vocabulary.tokens, vocabulary.ids, vocabulary.scores
    if not scores:
        raise _lacks_scores(vocabulary)
    merges = [
        (-score, ids[token[:cut]], ids[token[cut:]])
        for token, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    merges.sort()
    return [(tokens[left], tokens[right]) for _, left, right in merges]
