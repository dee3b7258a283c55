"""What comes back, as JSON schemas."""

from __future__ import annotations

from edge.serve.openapi_schema import FLAG, NULL, Schema, answer, array, either, integer, number, one_of, text

COUNT = integer()
TIME = number(least=0)
OPTIONAL_TEXT = either(text(), NULL)
ERROR = answer(
    error=answer(message=text(), type=text(), param=OPTIONAL_TEXT, code=NULL),
)
OLLAMA_ERROR = answer(error=text())
HEALTH = answer(status=one_of("ok"))
MODEL = answer(id=text(), object=one_of("model"), created=COUNT, owned_by=text(), kind=text())
MODELS = answer(object=one_of("list"), data=array(MODEL))
OUTPUT_DETAILS = answer(reasoning_tokens=COUNT, accepted_prediction_tokens=COUNT, rejected_prediction_tokens=COUNT)
USAGE = answer(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=answer(cached_tokens=COUNT),
    completion_tokens_details=OUTPUT_DETAILS,
)
LIKELY = answer(token=text(), logprob=number(), bytes=array(integer(most=255)))
LOGPROBS = array(answer(**LIKELY["properties"], top_logprobs=array(LIKELY)))
FINISH = one_of("stop", "length", "tool_calls")
HEAD = {"id": text(), "created": COUNT, "model": text(), "usage": USAGE}
CALL = answer(id=text(), type=one_of("function"), function=answer(name=text(), arguments=text()))
MESSAGE = answer(
    role=one_of("assistant"), content=OPTIONAL_TEXT, refusal=NULL, reasoning_content=text(), tool_calls=array(CALL)
)
MESSAGE["required"] = ["role", "content", "refusal"]
CHAT = answer(
    object=one_of("chat.completion"),
    choices=array(
        answer(
            index=COUNT,
            message=MESSAGE,
            logprobs=either(answer(content=LOGPROBS, refusal=NULL), NULL),
            finish_reason=FINISH,
        ),
        1,
    ),
    **HEAD,
)
TEXT_LOGPROBS = answer(
    tokens=array(text()),
    token_logprobs=array(number()),
    top_logprobs=array({"type": "object", "additionalProperties": number()}),
    text_offset=array(COUNT),
)
COMPLETION = answer(
    object=one_of("text_completion"),
    choices=array(
        answer(index=COUNT, text=text(), logprobs=either(TEXT_LOGPROBS, NULL), finish_reason=FINISH),
        1,
    ),
    **HEAD,
)
# A model that turns one text into another has no counts of details.
COMPLETION["properties"] |= {"usage": USAGE | {"required": ["prompt_tokens", "completion_tokens", "total_tokens"]}}

STATUS = one_of("in_progress", "completed", "incomplete")
ITEM = {"id": text(), "status": STATUS}
THOUGHTS = answer(
    type=one_of("reasoning"),
    summary=array({}, most=0),
    content=array(answer(type=one_of("reasoning_text"), text=text())),
    **ITEM,
)
WORDS = answer(
    type=one_of("message"),
    role=one_of("assistant"),
    content=array(
        answer(type=one_of("output_text"), text=text(), annotations=array({}, most=0), logprobs=LOGPROBS),
    ),
    **ITEM,
)
FUNCTION_CALL = answer(type=one_of("function_call"), call_id=text(), name=text(), arguments=text(), **ITEM)
TOOL = answer(
    type=one_of("function"), name=text(), description=OPTIONAL_TEXT, parameters={"type": "object"}, strict=NULL
)
CHOICE = either(one_of("auto", "none", "required"), answer(type=one_of("function"), name=text()))
FORM = either(
    answer(type=one_of("text", "json_object")),
    answer(type=one_of("json_schema"), name=text(), schema={"type": ["object", "boolean"]}),
)
RESPONSE = answer(
    id=text(),
    object=one_of("response"),
    created_at=COUNT,
    completed_at=either(COUNT, NULL),
    status=one_of("in_progress", "completed", "incomplete", "failed"),
    background=one_of(False),
    error=either(answer(code=text(), message=text()), NULL),
    incomplete_details=either(answer(reason=one_of("max_output_tokens")), NULL),
    instructions=OPTIONAL_TEXT,
    max_output_tokens=either(COUNT, NULL),
    metadata={"type": "object", "additionalProperties": text()},
    model=text(),
    output=array(either(THOUGHTS, WORDS, FUNCTION_CALL)),
    parallel_tool_calls=FLAG,
    previous_response_id=NULL,
    reasoning=answer(effort=OPTIONAL_TEXT, summary=NULL),
    store=one_of(False),
    temperature=either(TIME, NULL),
    text=answer(format=FORM),
    tool_choice=CHOICE,
    tools=array(TOOL),
    top_logprobs=COUNT,
    top_p=either(TIME, NULL),
    truncation=one_of("disabled"),
    usage=either(
        answer(
            input_tokens=COUNT,
            input_tokens_details=answer(cached_tokens=COUNT, cache_write_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=OUTPUT_DETAILS,
            total_tokens=COUNT,
        ),
        NULL,
    ),
)
SEGMENT = answer(
    id=COUNT,
    start=TIME,
    end=TIME,
    text=text(),
    tokens=array(COUNT),
    temperature=TIME,
    avg_logprob=number(),
    compression_ratio=TIME,
    no_speech_prob=either(TIME, NULL),
)
TRANSCRIPT = answer(text=text(), task=text(), language=OPTIONAL_TEXT, duration=TIME, segments=array(SEGMENT))
TRANSCRIPT["required"] = ["text"]

VECTOR = array(number())
EMBEDDINGS = answer(
    object=one_of("list"),
    data=array(answer(object=one_of("embedding"), index=COUNT, embedding=either(VECTOR, text()))),
    model=text(),
    usage=answer(prompt_tokens=COUNT, total_tokens=COUNT),
)
RANKED = answer(index=COUNT, relevance_score=number(), document=answer(text=text()))
RANKED["required"] = ["index", "relevance_score"]
RERANK = answer(
    object=one_of("list"),
    model=text(),
    results=array(RANKED),
    usage=answer(prompt_tokens=COUNT, total_tokens=COUNT),
)
OLLAMA_EMBED = answer(
    model=text(), embeddings=array(VECTOR), total_duration=COUNT, load_duration=COUNT, prompt_eval_count=COUNT
)
OLLAMA_EMBEDDING = answer(embedding=VECTOR)
DETAILS = answer(format=text(), family=text(), families=array(text()), parameter_size=text(), quantization_level=text())
OLLAMA_MODEL = answer(name=text(), model=text(), modified_at=text(), size=COUNT, digest=text(), details=DETAILS)
OLLAMA_MODELS = answer(models=array(OLLAMA_MODEL))
OLLAMA_VERSION = answer(version=text())
OLLAMA_SHOW = answer(template=text(), details=DETAILS, model_info={"type": "object"}, capabilities=array(text()))
DURATIONS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


def _ollama(required: tuple[str, ...], **said: Schema) -> Schema:
    """An answer of Ollama's protocol; one without a prompt has no figures."""
    head = {"model": text(), "created_at": text(), "done": FLAG, "done_reason": text()}
    found = answer(**head, **said, **dict.fromkeys(DURATIONS, COUNT))
    return found | {"required": [*head, *required]}


OLLAMA_CALL = answer(function=answer(name=text(), arguments={"type": "object"}))
OLLAMA_MESSAGE = answer(role=one_of("assistant"), content=text(), thinking=text(), tool_calls=array(OLLAMA_CALL))
OLLAMA_MESSAGE["required"] = ["role", "content"]
OLLAMA_CHAT = _ollama(("message",), message=OLLAMA_MESSAGE)
OLLAMA_GENERATE = _ollama(("response",), response=text(), thinking=text())
