"""What requests may say, as JSON schemas. The tests compare them with the fields that handlers take."""

from __future__ import annotations

from edge.runtime import options
from edge.runtime.decode.form import LONGEST
from edge.serve import (
    audio,
    bias,
    embeddings,
    fields,
    messages,
    ollama,
    openai,
    rerank,
    responses,
    responses_input,
    tools,
)
from edge.serve.answering import TOP_LOGPROBS
from edge.serve.openapi_schema import FLAG, LABEL, NULL, Schema, array, either, integer, number, one_of, record, text

STOP = text(1, fields.LONGEST_TEXT)
SAMPLING = {
    "temperature": number(least=0),
    "top_p": number(above=0, most=1),
    "top_k": integer(most=options.LARGEST),
    "min_p": number(least=0, most=1),
    "repetition_penalty": number(above=0),
}
LENGTH = integer(1)
SCHEMA: Schema = {"type": ["object", "boolean"]}
OPTIONS = {
    **SAMPLING,
    "regex": text(1, LONGEST),
    "grammar": text(1, LONGEST),
    "seed": integer(),
    "stop": either(STOP, array(STOP, most=fields.MOST_TEXTS)),
    "store": one_of(False),
    "modalities": one_of(["text"]),
    **dict.fromkeys(openai.LABELS, LABEL),
}
BIAS = {
    "logit_bias": {
        "type": "object",
        "additionalProperties": number(least=-100, most=100),
        "propertyNames": {"pattern": "^[0-9]+$"},
        "maxProperties": bias.MOST,
    },
    **{name: number(least=-2, most=2) for name in bias.PENALTIES},
}
STREAM = {
    "stream": FLAG,
    "stream_options": record(include_usage=FLAG, include_obfuscation=LABEL),
}
FUNCTION = {
    "name": text(1, tools.NAMES),
    "description": text(),
    "parameters": {"type": "object"},
    "strict": LABEL,
}
KIND = one_of("function")
ARGUMENTS = either({"type": "object"}, {"type": "string", "contentMediaType": "application/json"})
CALL = record(
    ("function",),
    id=LABEL,
    type=LABEL,
    index=LABEL,
    function=record(("name",), name=text(), arguments=ARGUMENTS),
)
CALL["additionalProperties"] = CALL["properties"]["function"]["additionalProperties"] = True
CHAT_TOOL = record(("function",), type=KIND, function=record(("name",), **FUNCTION))
FLAT_TOOL = record(("type", "name"), type=KIND, **FUNCTION)
CHOICES = one_of("auto", "none", "required")
CHAT_CHOICE = either(CHOICES, record(("type", "function"), type=KIND, function=record(("name",), name=text())))
FLAT_CHOICE = either(CHOICES, record(("type", "name"), type=KIND, name=text()))
for loose in (CHAT_CHOICE["anyOf"][1], CHAT_CHOICE["anyOf"][1]["properties"]["function"], FLAT_CHOICE["anyOf"][1]):
    loose["additionalProperties"] = True
TALK = {
    "tools": array(CHAT_TOOL, most=tools.MOST),
    "tool_choice": CHAT_CHOICE,
    "parallel_tool_calls": FLAG,
}
NAMED = {"name": LABEL, "description": LABEL, "strict": LABEL}
RESPONSE_FORMAT = either(
    record(("type",), type=one_of("text", "json_object")),
    record(
        ("type", "json_schema"),
        type=one_of("json_schema"),
        json_schema=record(("schema",), schema=SCHEMA, **NAMED),
    ),
)
FLAT_FORMAT = either(
    record(("type",), type=one_of("text", "json_object")),
    record(("type", "schema"), type=one_of("json_schema"), schema=SCHEMA, **NAMED),
)


def _content(*kinds: str) -> Schema:
    """The content of a message: a text, or parts of these kinds."""
    labels = dict.fromkeys(messages.PART_LABELS, LABEL)
    part = record(("type", "text"), type=one_of(*kinds), text=text(), **labels)
    return either(text(), array(part, most=messages.MOST_MESSAGES))


def _messages(form: messages.MessageForm, content: Schema, least: int = 1) -> Schema:
    """The messages of a conversation. Those of the assistant alone have thoughts and calls."""
    labels = (
        dict.fromkeys(form.unread, LABEL)
        | {"tool_call_id": text(), form.tool: text()}
        | ({"images": array({}, most=0)} if form.images else {})
    )
    others = [role for role, ours in form.roles.items() if ours != "assistant"]
    kinds = [
        record(("role",), role=one_of(*roles), content=content, tool_calls=calls, **{form.thoughts: thoughts}, **labels)
        for roles, thoughts, calls in ((others, one_of(""), array({}, most=0)), (["assistant"], text(), array(CALL)))
    ]
    return array(either(*kinds), least, messages.MOST_MESSAGES)


ITEM_LABELS = dict.fromkeys(responses_input.LABELS, LABEL)
ITEM = either(
    record(
        ("role",),
        type=one_of("message"),
        role=one_of(*responses_input.ROLES),
        content=_content(*responses_input.TEXTS),
        phase=LABEL,
        **ITEM_LABELS,
    ),
    record(
        ("type",),
        type=one_of("reasoning"),
        content=_content("reasoning_text"),
        summary=_content("summary_text"),
        encrypted_content=one_of(""),
        **ITEM_LABELS,
    ),
    record(
        ("type", "name"),
        type=one_of("function_call"),
        name=text(),
        arguments=ARGUMENTS,
        call_id=text(),
        **ITEM_LABELS,
    ),
    record(
        ("type",),
        type=one_of("function_call_output"),
        call_id=text(),
        output=_content(*responses_input.TEXTS),
        **ITEM_LABELS,
    ),
)
CHAT = record(
    ("messages",),
    messages=_messages(openai.MESSAGES, _content("text")),
    n=integer(1, openai.MOST_ANSWERS),
    logprobs=FLAG,
    top_logprobs=integer(most=TOP_LOGPROBS),
    reasoning_effort=one_of(*openai.EFFORTS),
    response_format=RESPONSE_FORMAT,
    max_tokens=LENGTH,
    max_completion_tokens=LENGTH,
    **OPTIONS,
    **BIAS,
    **STREAM,
    **TALK,
)
COMPLETION = record(
    ("prompt",),
    prompt=either(text(), array(text(), 1, 1)),
    n=integer(1, openai.MOST_ANSWERS),
    logprobs=integer(most=TOP_LOGPROBS),
    echo=one_of(False),
    best_of=one_of(1),
    max_tokens=LENGTH,
    **OPTIONS,
    **BIAS,
    **STREAM,
)
OTHER_TEXT = record(
    ("prompt",),
    prompt=either(text(1), array(text(1), most=openai.MOST_TEXTS)),
    source=text(),
    target=text(),
    beams=integer(1, options.LARGEST),
    temperature=number(least=0),
    seed=either(integer(most=2**128 - 1), one_of("random")),
    max_tokens=LENGTH,
    stream=one_of(False),
    n=one_of(1),
    user=LABEL,
)
RESPONSE = record(
    ("input",),
    input=either(text(), array(ITEM, 1, messages.MOST_MESSAGES)),
    instructions=text(),
    metadata={"type": "object", "additionalProperties": text(), "maxProperties": responses.MOST_LABELS},
    reasoning=record(effort=one_of(*openai.EFFORTS), summary=one_of("auto"), generate_summary=one_of("auto")),
    text=record(format=FLAT_FORMAT, verbosity=one_of("medium")),
    tools=array(FLAT_TOOL, most=tools.MOST),
    tool_choice=FLAT_CHOICE,
    parallel_tool_calls=TALK["parallel_tool_calls"],
    include=array(one_of(*responses.INCLUDED), most=len(responses.INCLUDED)),
    top_logprobs=integer(most=TOP_LOGPROBS),
    stream=FLAG,
    stream_options=record(include_obfuscation=LABEL),
    previous_response_id=NULL,
    conversation=NULL,
    prompt=NULL,
    background=one_of(False),
    truncation=one_of("disabled"),
    max_tool_calls=LABEL,
    max_output_tokens=LENGTH,
    **{name: each for name, each in OPTIONS.items() if name != "metadata"},
)
SOUND = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "language": text(),
        "temperature": text(),
        "stream": text(),
        "response_format": one_of(*audio.FORMS),
        "timestamp_granularities[]": one_of("segment"),
    },
    "required": ["file"],
    "additionalProperties": False,
}
OLLAMA_OPTIONS = record(
    **{theirs: SAMPLING[ours] for ours, theirs in ollama.OPTIONS.items()},
    seed=integer(-1),
    num_predict={"type": "integer", "minimum": -2, "maximum": fields.LARGEST, "not": {"const": 0}},
    stop=OPTIONS["stop"],
    num_ctx=integer(1),
    **{name: one_of(*values) for name, values in ollama.NEUTRAL.items()},
    **dict.fromkeys(ollama.MACHINE, LABEL),
)
OLLAMA = {
    "stream": FLAG,
    "keep_alive": {"type": ["number", "string"]},
    "think": either(FLAG, one_of(*openai.EFFORTS)),
    "options": OLLAMA_OPTIONS,
    "format": either(one_of("", "json"), SCHEMA),
}
OLLAMA_CHAT = record(messages=_messages(ollama.MESSAGES, text(), 0), tools=array(CHAT_TOOL, most=tools.MOST), **OLLAMA)
OLLAMA_GENERATE = record(
    prompt=text(),
    system=text(),
    raw=FLAG,
    **{name: either(one_of(""), array({}, most=0)) for name in ollama.UNSERVED},
    **OLLAMA,
)
VECTOR = {"prompt": text(), "dimensions": integer(1), "truncate": FLAG}
TOKENS = array({"type": "integer"}, 1)
EMBEDDED = either(text(), array(text(), 0, embeddings.MOST_TEXTS), TOKENS, array(TOKENS, 1, embeddings.MOST_TEXTS))
EMBEDDING = record(("input",), input=EMBEDDED, encoding_format=one_of("", *embeddings.FORMS), user=LABEL, **VECTOR)
DOCUMENT = either(text(), record(("text",), text=text()))
RERANK = record(
    ("query", "documents"),
    query=text(),
    documents=array(DOCUMENT, 1, rerank.MOST_DOCUMENTS),
    top_n=integer(1),
    return_documents=FLAG,
    raw_scores=FLAG,
    truncate=FLAG,
    user=LABEL,
)
UNUSED = {"keep_alive": LABEL, "options": one_of({})}
OLLAMA_EMBED = record(input=EMBEDDED, **VECTOR, **UNUSED)
OLLAMA_EMBEDDING = record(prompt=text(), **UNUSED)
OLLAMA_SHOW = record(name=text(), verbose=LABEL)
