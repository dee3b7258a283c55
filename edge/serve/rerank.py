"""Documents by how well they answer a query, in the form that Jina, Cohere and llama-server share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.embedding_format import RERANKER
from edge.errors import InputError
from edge.runtime.embed.rerank_options import RerankOptions
from edge.runtime.options import shown
from edge.serve.answering import while_there
from edge.serve.fields import Fields
from edge.serve.refusal import BAD, Refusal

if TYPE_CHECKING:
    from edge.runtime.embed.reranker import Ranked, Reranker
    from edge.serve.server import Server

MOST_DOCUMENTS = 2048  # of a request


async def rerank(server: Server, request: Request) -> Response:
    """`POST /v1/rerank`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, RERANKER)
    query: str | None = fields.text("query")
    documents: Sequence[str] | None = fields.take("documents", _documents)
    for field, value in (("query", query), ("documents", documents)):
        if value is None:
            raise Refusal(BAD, f"The request has no {field}.", field=field)
    options = RerankOptions(
        top_n=fields.integer("top_n", least=1), raw_scores=fields.flag("raw_scores"), truncate=fields.flag("truncate")
    )
    returned = fields.flag("return_documents")
    fields.unread("user")
    fields.end()
    assert query is not None and documents is not None

    def work(interrupted: Callable[[], bool]) -> tuple[list[Ranked], int]:
        def turn(model: Reranker) -> tuple[list[Ranked], int]:
            read = model.read(query, documents, options)
            return model.ranked(read, options, interrupted=interrupted), read.tokens

        return server.models.run(name, turn)

    found, tokens = await while_there(request, work)
    results = [
        {"index": each.index, "relevance_score": each.score}
        | ({"document": {"text": documents[each.index]}} if returned else {})
        for each in found
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "model": name, "results": results, "usage": usage})


def _documents(value: Any) -> list[str]:
    """Texts, each of which may stand in an object."""
    if not isinstance(value, list) or not value:
        raise InputError(f"The documents must be a list of texts, not {shown(value)}.")
    if len(value) > MOST_DOCUMENTS:
        raise InputError(f"A request has at most {MOST_DOCUMENTS} documents, not {len(value)}.")
    found = []
    for each in value:
        text = each.get("text") if isinstance(each, dict) and each.keys() == {"text"} else each
        if not isinstance(text, str):
            raise InputError(f'A document must be a text, or {{"text": ...}}, not {shown(each)}.')
        found.append(text)
    return found
