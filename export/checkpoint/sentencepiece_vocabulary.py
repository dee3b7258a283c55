"""Tokenizers of a SentencePiece model: Marian's and M2M100's, whose pieces have their ids in vocab.json, and NLLB's,
mBART's and PLBart's, whose ids follow from the model's own.

transformers runs Marian's and M2M100's in Python over the `sentencepiece` library; here all become a tokenizer.json.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.vocabulary_sizes import check_character_map, check_lengths
from edge.export.graph.families import FAMILIES

MARIAN, M2M100 = "source.spm", "sentencepiece.bpe.model"
VOCABULARY = "vocab.json"
EOS, UNKNOWN = "</s>", "<unk>"

SPARE = 1000  # ids beyond twice the tokens that a vocabulary may have
_TARGET = re.compile(">>.*<<")
_UNIGRAM, _BPE = 1, 2  # SentencePiece's models
_UNKNOWN_PENALTY = 10.0  # what an unknown character scores below the least of its pieces
_NORMAL = 1  # its type of a piece that text is made of
_SPACE = "\u2581"  # its mark for a space

# Stands before tokens that are written but never read, such as those of Marian's target language alone: in text it
# becomes a character of no vocabulary, so that they match nothing; the decoder takes it away.
_UNREAD, _NOTHING = "\U000f0000", "\U000f0001"


# Tokenizers of fairseq's models, by transformers' names: where its list of languages stands, the source language where
# none is set, and how that stands around a text.
_FAIRSEQ = {
    "NllbTokenizer": ("nllb.tokenization_nllb", "eng_Latn", "{language} $A </s>"),
    "MBartTokenizer": ("mbart.tokenization_mbart", "en_XX", "$A </s> {language}"),
    "MBart50Tokenizer": ("mbart50.tokenization_mbart50", "en_XX", "{language} $A </s>"),
    "PLBartTokenizer": ("plbart.tokenization_plbart", "", "$A </s> {language}"),
}
_FAIRSEQ_START = ("<s>", "<pad>", EOS, UNKNOWN)  # in the place of SentencePiece's <unk>, <s> and </s>


def find_fairseq(root: Path, settings: Mapping[str, Any], model_type: str | None) -> tuple[Path, str] | None:
    """The SentencePiece model of a directory whose tokenizer is one of fairseq's, and transformers' name for it."""
    path = root / M2M100
    if not path.is_file() or (root / VOCABULARY).is_file():
        return None
    family = FAMILIES.get(model_type or "")
    by_default = "" if family is None else family.traits.get("tokenizer", "")
    name = str(settings.get("tokenizer_class") or by_default).removesuffix("Fast")
    return (path, name) if name in _FAIRSEQ else None


def convert_fairseq(model: Path, name: str, settings: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json.

    Ids are those of the checkpoints, as transformers 4 makes them: SentencePiece's and one more, the languages behind
    them, then <mask>. transformers 5 knows no language of a directory without a tokenizer.json, and calls them unknown.

    Raises:
        CheckpointError: the file cannot be read.
    """
    import importlib

    where, source, template = _FAIRSEQ[name]
    if settings.get("legacy_behaviour"):  # of NLLB
        template = "$A </s> {language}"
    read = _read(model)
    module = importlib.import_module(f"transformers.models.{where}")
    with _fitting(model):
        language, after = settings.get("src_lang") or source, [*module.FAIRSEQ_LANGUAGE_CODES, "<mask>"]
        if name == "PLBartTokenizer":
            language, after = _of_plbart(module, settings)
        tokens = [*_FAIRSEQ_START, *(piece.piece for piece in read.pieces[3:]), *after]
        ids = {token: i for i, token in enumerate(tokens)}
        return _finished(read, ids, [*_FAIRSEQ_START, *after], [], template.format(language=language).strip())


def _of_plbart(module: Any, settings: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The source language's token, which PLBart's smaller set of languages does without unless one is set, and the
    tokens after SentencePiece's."""
    several = (codes := settings.get("language_codes") or "base") == "multi"
    source = settings.get("src_lang") or ("en_XX" if several else "")
    after = [*module.FAIRSEQ_LANGUAGE_CODES[codes], *([] if several else ["<mask>"])]
    return module.FAIRSEQ_LANGUAGE_CODES_MAP.get(source, source), after


def find(root: Path) -> Path | None:
    """The SentencePiece model in the directory `root` that goes with its vocab.json."""
    if not (root / VOCABULARY).is_file():
        return None
    return next((root / name for name in (MARIAN, M2M100) if (root / name).is_file()), None)


def convert(model: Path, vocabulary: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json.

    model: what `find` gave. vocabulary: vocab.json's content. settings: tokenizer_config.json's.

    Raises:
        CheckpointError: the files cannot be read or do not belong together, or source and target have vocabularies of
            their own.
    """
    if settings.get("separate_vocabs"):
        raise CheckpointError(
            f"{model.parent} has one vocabulary for the source and another for the target; only models with a common "
            "one can be exported."
        )
    read = _read(model)
    ids = _ids(model, vocabulary)
    with _fitting(model):
        return _converted(model, read, ids, settings)


def _converted(model: Path, read: Any, ids: dict[str, int], settings: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json of a Marian or an M2M100."""
    if model.name == MARIAN:
        # The token >>fra<< in front of a text asks for the target language; what wrote it there is the user.
        texts = [AddedToken(token, normalized=False) for token in ids if _TARGET.fullmatch(token)]
        template = f"$A {EOS}"
        languages: dict[str, int] = {}
    else:
        from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

        codes = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes") or "m2m100"]
        languages = {f"__{code}__": len(ids) + i for i, code in enumerate(codes)}
        texts = []
        template = f"__{settings.get('src_lang') or 'en'}__ $A {EOS}"
    special = [token for token in ("<s>", "<pad>", EOS, UNKNOWN) if token in ids] + list(languages)
    ids |= languages
    return _finished(read, ids, special, texts, template)


def _finished(
    model: Any, ids: dict[str, int], special: Sequence[str], texts: Sequence[AddedToken], template: str
) -> str:
    """The text of a tokenizer.json. texts: what else is matched whole; template: what stands around a text."""
    tokenizer = _tokenizer(model, ids, keep=[*special, *(token.content for token in texts)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens(list(texts))
    used = [(token, ids[token]) for token in template.split() if token in ids]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return str(tokenizer.to_str())


@contextlib.contextmanager
def _fitting(model: Path) -> Iterator[None]:
    """Turn errors of libraries, within the block, into a CheckpointError about the model and the files next to it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as e:  # tokenizers raises bare Exceptions, transformers what its own tables raise
        raise CheckpointError(
            f"{model} and the files next to it make no tokenizer ({on_one_line(e)}); fetch the checkpoint again."
        ) from None


def check_model(path: Path) -> None:
    """Raise CheckpointError if converting a SentencePiece model would need memory or time out of proportion to its
    size. A file that is no such model passes: some have its name and are of another kind."""
    with contextlib.suppress(_Unreadable):
        _parsed(path)


class _Unreadable(CheckpointError):
    """Raised for a file that is no SentencePiece model."""


def _parsed(path: Path) -> Any:
    """SentencePiece's ModelProto, of whatever kind."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as e:  # protobuf's errors differ between its implementations
        raise _Unreadable(f"{path} is not a SentencePiece model that can be read ({on_one_line(e)}).") from None
    check_character_map(model.normalizer_spec.precompiled_charsmap, path)
    check_lengths((piece.piece for piece in model.pieces), path)
    return model


def _read(path: Path) -> Any:
    """SentencePiece's ModelProto, of a kind that is known."""
    model = _parsed(path)
    if not _scores(model) or model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise CheckpointError(f"{path} is no SentencePiece model of the kinds that are known: unigram and BPE.")
    return model


def _scores(model: Any) -> dict[str, float]:
    """Return the scores of the normal pieces, in the model's order."""
    return {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}


def _ids(model: Path, vocabulary: Mapping[str, Any]) -> dict[str, int]:
    ids = {token: i for token, i in vocabulary.items() if isinstance(i, int) and i >= 0}
    if len(ids) != len(vocabulary) or len(set(ids.values())) != len(ids):
        raise CheckpointError(f"{model.with_name(VOCABULARY)} must give each token an id of its own.")
    if (last := max(ids.values(), default=0)) > 2 * len(ids) + SPARE:
        raise CheckpointError(
            f"{model.with_name(VOCABULARY)} gives {len(ids)} tokens ids of up to {last}; fetch the checkpoint again."
        )
    for token in (EOS, UNKNOWN):
        if token not in ids:
            raise CheckpointError(f"{model.with_name(VOCABULARY)} lacks the token {token}.")
    return ids


def _tokenizer(model: Any, ids: dict[str, int], keep: Sequence[str]) -> Tokenizer:
    """A tokenizer that cuts text into pieces as the SentencePiece model does, and knows tokens by `ids`.

    keep: the tokens that are matched whole, before the text is cut. Pieces without an id are left out: what they would
    match falls apart into others. A character that is no piece but has an id is cut out as an unknown one would be.
    """
    pieces, text, training = _scores(model), model.normalizer_spec, model.trainer_spec
    known = {*pieces, *keep}
    named = {i: token if token in known or len(token) == 1 else f"{_UNREAD}{token}" for token, i in ids.items()}
    if training.model_type == _UNIGRAM:
        tokens = [named.get(i, f"{_UNREAD}{i}") for i in range(max(named) + 1)]
        scores = {token: min(pieces.values()) - _UNKNOWN_PENALTY for token in tokens if len(token) == 1}
        scores |= pieces
        scored = [(token, scores.get(token, 0.0)) for token in tokens]  # the others are never matched by their scores
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=ids[UNKNOWN], byte_fallback=False))
    else:
        from transformers.tokenization_utils_base import generate_merges

        ranks = {piece: rank for rank, piece in enumerate(piece for piece in pieces if piece in ids)}
        vocabulary = {token: i for i, token in named.items()}
        merges = generate_merges(ranks)
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN, fuse_unk=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(_UNREAD, _NOTHING)]
    if text.precompiled_charsmap:
        steps.append(normalizers.Precompiled(text.precompiled_charsmap))
    steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    form: dict[str, Any] = dict(replacement=_SPACE, prepend_scheme="always" if text.add_dummy_prefix else "never")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**form, split=training.split_by_whitespace)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_UNREAD, ""), decoders.Metaspace(**form)])
    return tokenizer
