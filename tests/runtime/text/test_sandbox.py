"""Templates of strangers end soon, make little, and fail in one sentence, whatever they try."""

from __future__ import annotations

import random
import re
import resource
import sys
import time

import pytest
from chat_templates import KNOWN, conversations

from edge.errors import BundleError, EdgeError, InputError
from edge.runtime.text.meter import STEPS
from edge.runtime.text.sandbox import Bounded
from edge.runtime.text.template import LONGEST, ChatTemplate, Message

TALK: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why? " * 20}]
CPU_S = 7.0  # a second or two, but for what the clock stops after five
MEMORY = 400 << 20

# What is large: texts, lists and numbers, written in all ways.
BIG = "('a' * 4000000)"
GROWING = [
    *("'x' * 10**10", "10**10 * 'x'", "'x' * 9999999999", "[1] * 10**9", "(1, 2) * 10**9", "10 ** 10**9"),
    "2.5|round(10**9)",
    *(f"'x'.{name}(10**10)" for name in ("center", "ljust", "rjust", "zfill")),
    *("'x'|center(9999999999)", "'x'|center(width=9999999999)", "'x'|attr('center')(10**10)", "'x'['ljust'](10**10)"),
    *("'x\ny'|indent(9999999999)", f"({BIG}.split('a'))|length", "('x\n' * 100000)|indent(9999999)"),
    *("('\n' * 100000)|indent(99999, true, true)", "'x'.expandtabs(10**9)", "(1).to_bytes(10**9, 'big')"),
    *(f"{BIG}.replace('a', {BIG})", f"{BIG}|replace('a', {BIG})", f"{BIG}|replace(new={BIG}, old='a')"),
    *(f"{BIG}|replace('a', 10**1000)", f"{BIG}.replace('', 'b' * 30000)", f"{BIG}.translate({{97: {BIG}}})"),
    *("[1]|batch(10**9, 0)|list", "[1]|slice(10**9)|list", "range(10**9)", "lipsum(10**9)"),
    "dict.fromkeys(range(99999))",
    *("'%9999999999d' % 1", "'%*d' % (999999999, 1)", "'%(a)999999999d' % {'a': 1}", "'%.999999999f' % 1.5"),
    *("'%(a(b)c)999999999d' % {'a(b)c': 1}", "'%9999999999d'|format(1)", f"('%s' * 60000) % (({BIG},) * 60000)"),
    *("'{:>9999999999}'.format(1)", "'{:{}}'.format(1, '>9999999999')", "'{a[}]:>999999999}'.format(a={'}': 1})"),
    *(f"('{{0}}' * 90000).format({BIG})", "'{x:>9999999999}'.format_map({'x': 1})"),
    "['%99999999d']|map('format', 1)|list",
    *("messages|tojson(indent=10**9)", "([1] * 100000)|tojson(separators=('x' * 1000000, 'y'))"),
    *("([1] * 400000)|tojson(indent=100000)", f"{BIG}.join(range(99999)|map('string'))", f"range(99999)|join({BIG})"),
    *("([[1] * 100] * 4000)|sum(start=[])", "(range(99999)|map('string')|list)|sum(start='')"),
    *(f"{BIG}.rfind('b' ~ 'a' * 2000000)", f"{BIG}.strip('b' * 2000000 ~ 'a')", f"{BIG}|trim('b' * 2000000 ~ 'a')"),
    *(" and ".join([f"('b' ~ {BIG}) not in {BIG}"] * 500), " ~ ".join([BIG] * 3000), " + ".join([BIG] * 3000)),
    *(f"raise_exception({BIG})", "strftime_now('%9999999999d' * 1000)", f"({BIG}|e|e|e)|length"),
    "('f' * 10**6)|int(base=16)",
    *("strftime_now('%99999999Y' * 100000)", "([[[[1]]]] * 20)|tojson(indent='x' * 90000)", f"{BIG}|urlencode"),
    "([messages[0].items()] * 90000 + [messages[0].values()] * 90000)|string",
    f"(range(99999)|groupby('none', default={BIG}))|length",
]  # fmt: skip
DOUBLING = [
    *("x ~ x", "x + x", "[x, x]", "{'a': x, 'b': x}", "(x, x)", "x * 2", "twice(x)", "'%s%s' % (x, x)", "[x, x]|join"),
    *("'{0}{0}'.format(x)", "x|replace('a', 'aa')", "x|tojson|tojson", "x|string ~ x|string", "x|e ~ x"),
    "namespace(a=x, b=x)",
]  # fmt: skip
ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(999) %}{% raw %}"
    + "x" * 9999
    + "{% endraw %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(30) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% block a scoped %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for i in range(9999) %}{{ range(99999)|map('string')|map('upper')|select|list|length }}{% endfor %}",
    "{% for i in range(9999) %}{{ range(99999)|reject('odd')|select('odd')|first }}{% endfor %}",
    "{% set l = range(99999)|map('string')|list %}{% for i in range(99999) %}{{ (l|sort)|length }}{% endfor %}",
    "{% set o = namespace(l=[]) %}{% for i in range(9999) %}{% set o.l = o.l + ['x' * 3000000 ~ i] %}{% endfor %}",
    "{% set a = 'x' * 4000000 %}" + "".join(f"{{% set a{i} = a[{i}:] %}}" for i in range(3000)),
    "{% set a = 'a ' * 2000000 %}" + "".join(f"{{% set a{i} = a.split() %}}" for i in range(2000)),
    "{% autoescape 'x'|center(9999999999) %}{% endautoescape %}",
    "{% set o = namespace(x=[1]) %}{% for i in range(99999) %}{% set o.x = [o.x] %}{% endfor %}{{ o.x }}",
]
# What a template may say thousands of times in one expression, each time of something long.
MANY = [
    *("x ~ x", "x ~ 'a'", "x is upper", "x is lower", "{}[x]", "messages[x]", "{}[t]", "{t: 1}", "d.keys() - x"),
    *("x == y", "x < y", "9 in x", "x is eq(y)", "x is in(y)", "x|string", "x|length", "x|first", "x|last", "x|max"),
    *("x|select('eq', 1)|first", "x|sort|first", "t|list|first", "x|tojson|length", "'%.0s' % [x]", "x.count(9)"),
    *("x.index(1)", "d.keys().isdisjoint(x)", "[d.values().mapping]|string", "f(*x)", "x|join|length"),
]
LONG = [
    *(
        "range(99999)",
        "range(99999)|list",
        "[0] * 400000",
        "['a' * 40] * 80000",
        "[[0] * 600] * 600",
        "'ab ' * 1300000",
    ),
    *("[messages[0]] * 20000", "range(99999)|map('string')", "dict(range(99999)|map('string')|batch(2))"),
    "[[[[[[[[[[[[[[0, 0] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2] * 2]",
]
GIVEN = [
    *("", "(x)", "('in', x)", "('eq', x)", "('upper')", "('role', 'in', x)", "('0', 'eq', x)", "(x, x)", "(9999, x)"),
    *("(attribute='0', default=x)", "('a.b,c')", "('a' ~ '.a' * 99999)", "('a' ~ ',a' * 99999)", "(true, x)"),
]
CLOSER = [
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "map",
    "groupby",
    "unique",
    "sum",
    "sort",
    "min",
    "max",
    "batch",
]
WRONG = [
    *("{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}", "{{ " + "[" * 50000 + "]" * 50000 + " }}"),
    "{{ " + "not " * 30000 + "1 }}",
    *("{{ " + "-" * 99999 + "1 }}", "{{ a" + ".b" * 60000 + " }}", "{{ 1" + "+1" * 60000 + " }}"),
    "{{ 1" + "|string" * 9000 + " }}",
    *("{% if 1 %}" * 6000 + "{% endif %}" * 6000, "{% for a in b %}" * 30 + "{% endfor %}" * 30),
    "{{ " + "9" * 99999 + " }}",
    *("{% if 1 %}" + "{% elif 2 %}" * 9000 + "{% endif %}", "{% macro a() %}" * 4000 + "{% endmacro %}" * 4000),
    *("{{ a" + "()" * 60000 + " }}", "{{ 1" + " if 1 else 1" * 9000 + " }}"),
    "{{ " + "{1:" * 30000 + "1" + "}" * 30000 + " }}",
    *("x" * (LONGEST + 1), "{{ " * 30000, "{#" * 50000, "{% raw %}" * 9000, "{{ 'x'|urlize }}", "{% include 'x' %}{{"),
]  # fmt: skip


def measured(source: str) -> str:
    """The sentence that a template is refused with, or what it renders; the time and the memory that it may take."""
    begun, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = ChatTemplate(source, {"bos_token": "<s>"}).render(TALK)
    except EdgeError as e:
        said = str(e)
        assert len(said) < 600 and "\n" not in said
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < MEMORY
    assert time.thread_time() - begun < CPU_S
    return said


@pytest.mark.parametrize(
    "place", ["{{ %s }}", "{%% set a = %s %%}", "{%% for m in messages %%}{%% if %s %%}{%% endif %%}{%% endfor %%}"]
)
def test_no_expression_grows_beyond_the_room(place: str) -> None:
    for expression in GROWING:
        measured(place % expression)


@pytest.mark.parametrize("expression", DOUBLING)
def test_nothing_doubles_for_ever(expression: str) -> None:
    twice = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set o = namespace(x='<a') %}"
    for block in ("{%% set o.x = %s %%}", "{%% set y %%}{{ %s }}{%% endset %%}{%% set o.x = y %%}"):
        loop = "{% for i in range(90) %}{% set x = o.x %}" + block % expression + "{% endfor %}{{ o.x }}"
        measured(twice + loop)


@pytest.mark.parametrize("source", ENDLESS, ids=range(len(ENDLESS)))
def test_no_template_runs_for_ever(source: str) -> None:
    assert re.search(r"no honest one, because|refuses|not valid", measured(source))


@pytest.mark.parametrize("expression", MANY)
def test_no_expression_that_is_repeated_escapes_the_steps(expression: str) -> None:
    names = "{% set x = [0, 1] * 200000 %}{% set y = [0, 1] * 200000 %}{% set t = (0,) * 200000 %}"
    names += "{% set d = dict(range(9999)|map('string')|batch(2)) %}{% macro f() %}{{ {varargs: 1} }}{% endmacro %}"
    measured(names + "{{ [" + ", ".join([expression] * 400) + "] }}")
    measured(names + "{% if " + " and ".join([expression] * 400) + " %}{% endif %}")


@pytest.mark.parametrize("name", CLOSER)
def test_no_filter_looks_at_more_than_there_are_steps_for(name: str) -> None:
    draw = random.Random(name)
    for _ in range(6):
        value, given, second = draw.choice(LONG), draw.choice(GIVEN), draw.choice(LONG)
        measured(f"{{% set x = ({second}) %}}{{{{ ({value})|{name}{given}|list|length }}}}")


def test_every_filter_ends_soon_whatever_it_is_given() -> None:
    draw = random.Random(51)
    for name in sorted(Bounded().filters):
        measured(f"{{% set x = ({draw.choice(LONG)}) %}}{{{{ x|{name}{draw.choice(GIVEN)}|list|length }}}}")


def test_tests_count_what_they_look_through() -> None:
    assert "more steps" in measured("{{ range(99999)|reject('in', range(99999)|list)|list }}")
    assert "more steps" in measured("{{ ([messages[0]]*20000)|rejectattr('role','in',['x']*90000+['user'])|list }}")
    nested = "{% set ns=namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x=[ns.x] %}{% endfor %}"
    assert "more text" in measured(nested + "{{ ns.x|tojson(indent='\U0001f600'*60000)|length }}")


def test_what_templates_do_with_lists_still_works() -> None:
    for expression, made in {
        "messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join('|')": TALK[1]["content"],
        "messages|rejectattr('role', 'in', ['user', 'tool'])|list|length": "1",
        "[]|select('nonsense')|list|length": "0",
        "messages|groupby('role')|map('first')|join(',')": "system,user",
        "[3, 1, 2]|sort|join ~ ([3, 1, 2]|max) ~ ([3, 1, 2]|sum)": "12336",
        "messages[0].items()|list|length ~ (messages[0].keys()|join(','))": "2role,content",
        "[1, 2, 3]|batch(2, 0)|list": "[[1, 2], [3, 0]]",
        "{'a': [1]}|tojson(indent=2, separators=(',', ':'), sort_keys=true)": '{\n  "a":[\n    1\n  ]\n}',
        "1 ~ none ~ 'a' ~ [1]": "1Nonea[1]",
    }.items():
        assert ChatTemplate("{{ " + expression + " }}", {}).render(TALK) == made, expression


def test_what_cannot_be_compiled_is_the_bundle_s_fault() -> None:
    for source in WRONG:
        assert "The bundle's chat template" in measured(source), source[:50]


def test_programs_drawn_at_random_end_in_text_or_in_a_sentence() -> None:
    draw = random.Random(51)
    parts = ["x", "messages", "bos_token", "1", "'%s'", "range(999)", "loop.index", "2 ** x", *DOUBLING, *GROWING[:20]]
    tags = ["{{ %s }}", "{%% set x = %s %%}", "{%% for x in %s %%}", "{%% if %s %%}", "{%% set o.x = %s %%}"]
    for _ in range(60):
        tags_drawn = draw.choices(tags, k=draw.randint(1, 8))
        ends = [
            "{% endfor %}" if "for" in tag else "{% endif %}"
            for tag in reversed(tags_drawn)
            if "for" in tag or "if" in tag
        ]
        measured("{% set o = namespace() %}" + "".join(tag % draw.choice(parts) for tag in tags_drawn) + "".join(ends))


def test_a_long_conversation_is_not_too_long_for_an_honest_template() -> None:
    long: list[Message] = []
    for i in range(300):
        long += [{"role": "user", "content": f"{i} " + "word " * 2000}, {"role": "assistant", "content": "yes " * 500}]
    for name, source in KNOWN.items():
        template = ChatTemplate(source.text, source.special)
        assert len(template.render(long[:-1])) > 1_000_000, name


def test_known_templates_render_as_in_jinja2_s_own_sandbox() -> None:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    for name, source in KNOWN.items():
        ours = ChatTemplate(source.text, source.special)
        for talk in conversations():
            try:
                theirs, _ = render_jinja_template(
                    conversations=[talk], chat_template=source.text, add_generation_prompt=True, **source.special
                )
            except Exception:
                with pytest.raises(InputError):
                    ours.render(talk)
                continue
            assert ours.render(talk) == theirs[0], name


def test_an_honest_render_takes_a_hundredth_of_its_steps() -> None:
    for name, source in KNOWN.items():
        template = ChatTemplate(source.text, source.special)
        template.render([{"role": "user", "content": "Why?"}])
        environment = template.tree().environment
        assert isinstance(environment, Bounded)
        assert environment.meter.steps > 0.99 * STEPS, name


def test_renders_in_two_threads_do_not_share_their_bounds() -> None:
    from concurrent.futures import ThreadPoolExecutor

    template = ChatTemplate("{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}", {})
    with ThreadPoolExecutor(4) as pool:
        rendered = list(pool.map(template.render, [[{"role": "user", "content": "x"}]] * 4))
    assert {len(text) for text in rendered} == {90000}


def test_a_bundle_with_such_a_template_is_refused_with_the_way_out() -> None:
    with pytest.raises(BundleError, match="takes more steps than any template needs; use --raw"):
        ChatTemplate(ENDLESS[0], {}).render(TALK)
