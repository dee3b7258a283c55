"""The part of a manifest that says how a text becomes a vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

EMBEDDER = "embedder"  # the kind of such a model, and the role of its graph
VECTORS = "embeddings"  # the output of that graph
MEAN, CLS, LAST, MAX = POOLINGS = ("mean", "cls", "last", "max")  # over a text's tokens; the first; the last
MOST_VECTOR = 1 << 16  # numbers of a vector
MOST_FRAME, MOST_PROMPTS, LONGEST_PROMPT = 64, 256, 4000  # tokens around a text; prompts, and their letters


@dataclass(frozen=True)
class EmbeddingFormat:
    """The way from a text to its vector of `width` numbers.

    A text is `prompts[prompt]` and what was given, without blanks around both; its tokens stand between `prefix` and
    `suffix`, together at most the manifest's context. The graph pools (`pooling` says how, for people) and normalizes,
    where `normalized` is true.
    """

    width: int
    pooling: str
    normalized: bool = True
    prefix: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str | None = None  # where none is asked for
    lowercase: bool = False  # texts are read in small letters

    @property
    def frame(self) -> int:
        """Tokens around a text."""
        return len(self.prefix) + len(self.suffix)

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
