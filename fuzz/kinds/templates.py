"""Chat templates: programs of a bundle's, which run in a sandbox and under limits."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.damage import a_few, damaged_text

NAME = "templates"
HELP = "chat templates"
TRAITS = {"inputs": ()}
HONEST = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES = [
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ range(10**9) | list }}",
    "{{ 'x' * 10**9 }}",
    "{{ 'x' * 10**7 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ [[0] * 9999] * 9999 }}",
    "{{ ('x' * 9999) | replace('x', 'y' * 9999) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__ }}",
    "{{ self }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ raise_exception('\x1b[31mred\nline\x07') }}",
    "{{ raise_exception('x' * 10**6) }}",
    "{{ raise_exception(1) }}",
    "{{ strftime_now('%Y' * 10**6) }}",
    "{{ strftime_now('\0') }}",
    "{{ strftime_now(1) }}",
    "{{ 1 / 0 }}",
    "{{ messages | tojson(indent=10**8) }}",
    "{{ messages | pprint }}",
    "{{ lipsum(n=10**6) }}",
    "{{ undefined.x }}",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "{% generation %}x{% endgeneration %}",
    "{% break %}",
    "{{ 'a' | random }}",
    "{{ dict(a=1) | dictsort }}",
    "{{ (" * 2000 + "1" + ") }}" * 2000,
    "{% if 1 %}" * 500,
    "{{ messages[99] }}",
    "{{ messages[0].content | int }}",
    "{{ 'a' | urlize }}",
    "{{ 'x' | indent(10**9) }}",
    "{{ range(0, 10**12, 1) | length }}",
    "{{ 'a' | wordwrap(0) }}",
    "{{ messages | sort(attribute='content') | join('x' * 10**6) }}",
    "{{ ('x' * 10**5) | batch(1) | list | length }}",
]
VALUES = [
    *("range(99999)", "range(99999) | list", "[0] * 400000", "['a' * 40] * 80000", "[[0] * 600] * 600", "messages"),
    *("[messages[0]] * 20000", "'ab ' * 1300000", "('\U0001f600' * 10**6)", "dict(range(9999) | batch(2))", "x"),
    *("dict(range(9999) | batch(2)).values()", "(0,) * 1000", "namespace(a=1)", "range(99999) | map('string')"),
    "[[[[[[[[[[[[[0, 0] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2]",
]
TESTS = ["in", "eq", "ne", "lt", "upper", "odd", "sameas", "iterable", "defined"]
GIVEN = ["({x})", "('{test}', {x})", "('role', '{test}', {x})", "({x}, {x})", "(9999, {x})", "(indent={x})", ""]
GIVEN += ["(attribute='0', default={x})", "(attribute='a' ~ ',a' * 9999)", "(attribute='a' ~ '.a' * 9999)"]
OPERATIONS = [
    "{x} ~ {y}",
    "{x} == {y}",
    "{x} in {y}",
    "{x}[{y}]",
    "{x} - {y}",
    "{x} * 99",
    "{{{x}: 1}}",
    "'%.0s' % [{x}]",
]


def _expression(choose: random.Random, filters: list[str]) -> str:
    """Filters, tests and operations on what is long, alone or many times in a row."""
    x, y = choose.choice(VALUES), choose.choice(VALUES)
    if choose.random() < 0.7:
        for _ in range(a_few(choose)):
            given = choose.choice(GIVEN).format(x=f"({y})", test=choose.choice(TESTS))
            x = f"({x}) | {choose.choice(filters)}{given}"
    else:
        x = choose.choice(OPERATIONS).format(x=f"({x})", y=f"({y})")
    if choose.random() < 0.3:
        return "{% if " + " and ".join([x] * 99) + " %}{% endif %}"
    return "{% set x = " + x + " %}{{ x | list | length }}"


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    from jinja2.filters import FILTERS

    text, filters = HONEST, sorted(FILTERS)
    for _ in range(a_few(choose)):
        if choose.random() < 0.7:
            at = choose.choice([0, len(text), text.find("{% if add")])
            piece = choose.choice(PIECES) if choose.random() < 0.5 else _expression(choose, filters)
            text = text[:at] + piece + text[at:]
        else:
            text = damaged_text(text, choose)
    (place / "template.jinja").write_bytes(text.encode(errors="surrogatepass"))


def try_one(place: Path) -> None:
    from edge.runtime.text.template import ChatTemplate

    source = (place / "template.jinja").read_bytes().decode(errors="surrogatepass")
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert isinstance(template.render([{"role": "user", "content": "Hello \x1b[2J there"}]), str)
