"""The part of a manifest that says how a text becomes a vector, or a pair of texts a score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

EMBEDDER = "embedder"  # the kind of a model for vectors, and the role of its graph and of a reranker's
RERANKER = "reranker"  # the kind of a model that scores pairs of texts
IDS, TYPES = "input_ids", "token_type_ids"  # the inputs of that graph
VECTORS = "embeddings"  # its output
MEAN, CLS, LAST, MAX = POOLINGS = ("mean", "cls", "last", "max")  # over a text's tokens; the first; the last
MOST_VECTOR = 1 << 16  # numbers of a vector
MOST_FRAME, MOST_PROMPTS, LONGEST_PROMPT = 64, 256, 4000  # tokens around a text; prompts, and their letters


@dataclass(frozen=True)
class PairFormat:
    """The frame of a pair of texts: the tokens between them. types: the graph's input `token_type_ids` is 1 from the
    second text on, and 0 before it."""

    between: list[int]
    types: bool = False


@dataclass(frozen=True)
class EmbeddingFormat:
    """The way from a text to its vector of `width` numbers, or from a pair of texts to its score.

    A text is `prompts[prompt]` and what was given, without blanks around both; its tokens stand between `prefix` and
    `suffix`, together at most the manifest's context. The graph pools (`pooling` says how, for people) and normalizes,
    where `normalized` is true. With `pair` a text is two, a query and a document, and the vector one number: how well
    the document answers the query, as a logit.
    """

    width: int
    pooling: str
    normalized: bool = True
    prefix: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str | None = None  # where none is asked for
    lowercase: bool = False  # texts are read in small letters
    pair: PairFormat | None = None  # of a reranker

    @property
    def frame(self) -> int:
        """Tokens around a text, and between the two of a pair."""
        return len(self.prefix) + len(self.suffix) + (0 if self.pair is None else len(self.pair.between))

    def faults(self, context: int) -> Iterator[str]:
        """Yield what no export writes, in sentences. context: the manifest's."""
        if not 1 <= self.width <= MOST_VECTOR:
            yield f"embedding.width is {self.width}, and it is from 1 to {MOST_VECTOR}"
        if self.pooling not in POOLINGS:
            yield f"embedding.pooling is {self.pooling[:60]!r}, and it is one of {', '.join(POOLINGS)}"
        if self.frame > MOST_FRAME or self.frame >= context:
            yield f"embedding has {self.frame} tokens around a text, and the context is {context}"
        if len(self.prompts) > MOST_PROMPTS or any(len(each) > LONGEST_PROMPT for each in self.prompts.values()):
            yield f"embedding.prompts has {len(self.prompts)} prompts, or a long one"
        if self.prompt is not None and self.prompt not in self.prompts:
            yield f"embedding.prompt is {self.prompt[:60]!r}, which is none of its prompts"
        if self.pair is not None and self.width != 1:
            yield f"embedding.width is {self.width}, and a pair has one score"
