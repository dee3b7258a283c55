"""Calls of tools that are demanded of a server: how many parse and satisfy their tools' schemas.

    edge serve MODEL
    python benchmarks/tool_calls.py [--address http://127.0.0.1:8080] [--count 100]

Every other request draws tokens at random. In turns one of the tools is demanded, or any.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}},
    "add": {"a": {"type": "number"}, "b": {"type": "number"}},
    "book_table": {
        "guests": {"type": "integer", "minimum": 1, "maximum": 20},
        "day": {"type": "string", "format": "date"},
        "wishes": {"type": "array", "items": {"enum": ["window", "quiet", "garden"]}, "maxItems": 2},
    },
}
QUESTIONS = [
    "What is the weather in {city}?",
    "Add {n} and 17.",
    "Book a table for {n} on 2025-03-04, at the window.",
    "How warm is it in {city}, in Fahrenheit?",
    "What is {n} plus {n}?",
    "We are {n} tonight; find us a quiet table in {city}.",
]
CITIES = ["Paris", "Oslo", "Lima", "Kyoto", "Accra", "Quito", "Turin"]


def schema(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, all of which are wanted."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def fault(answer: dict[str, Any], demanded: str | None) -> str | None:
    """What is wrong with an answer; None where it is one call that satisfies its schema."""
    choice = answer["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] != "tool_calls" or len(calls) != 1:
        return f"ended by {choice['finish_reason']}, with {len(calls)} calls: {choice['message']}"
    name, said = calls[0]["function"]["name"], calls[0]["function"]["arguments"]
    if name not in TOOLS or demanded not in (None, name):
        return f"the tool {name}, and not {demanded}"
    checks = Draft202012Validator(schema(TOOLS[name]), format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next(checks.iter_errors(json.loads(said)), None)
    return None if error is None else f"{said}: {error.message}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="http://127.0.0.1:8080")
    parser.add_argument("--count", type=int, default=100, help="requests")
    parser.add_argument("--tokens", type=int, default=300, help="maximum tokens of an answer")
    given = parser.parse_args(argv)
    tools = [{"type": "function", "function": {"name": n, "parameters": schema(p)}} for n, p in TOOLS.items()]
    right, tokens, called = 0, 0, Counter[str]()
    for number in range(given.count):
        said = QUESTIONS[number % len(QUESTIONS)].format(city=CITIES[number % len(CITIES)], n=number % 19 + 1)
        demanded = [*TOOLS][number % len(TOOLS)] if number % 4 == 3 else None
        choice = {"type": "function", "function": {"name": demanded}} if demanded else "required"
        body = {"messages": [{"role": "user", "content": said}], "tools": tools, "tool_choice": choice}
        body |= {"max_tokens": given.tokens, "temperature": 0.8 if number % 2 else 0, "seed": number}
        request = urllib.request.Request(f"{given.address}/v1/chat/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as e:
            sys.exit(f"tool_calls: {e.code}: {e.read().decode(errors='replace')}")
        tokens += answer["usage"]["completion_tokens"]
        if (why := fault(answer, demanded)) is None:
            right += 1
            called[answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"]] += 1
        else:
            print(f"request {number}: {why}")
        print(f"{number + 1} asked, {right} right", end="\r", file=sys.stderr)
    print(f"{right} of {given.count} calls parse and satisfy their schemas; {tokens / given.count:.0f} tokens each")
    print(f"called: {dict(called)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
