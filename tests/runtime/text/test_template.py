"""Chat templates render as transformers renders them, and cannot do harm."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from fake_engine import byte_bundle

from edge.errors import BundleError, InputError
from edge.runtime.text.template import ChatTemplate, Message, chat_template, check_messages
from edge.runtime.text.tokenizer import Text

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße & <b>"},
    {"role": "assistant", "content": "Yes.\n"},
    {"role": "user", "content": "Why?"},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """
{{- bos_token }}
{%- set system = "" %}
{% if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{% endif %}
    {% for message in messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}
  {% endif %}
[{{ message.role }}]{{ message.content | tojson }} {{ {"b": 1, "a": "<é>"} | tojson(indent=2) }}
  {% if loop.last %}{% break %}{% endif %}
    {% endfor %}
{% if tools is not none %}tools{% endif %}
{% generation %}{{ eos_token }}
{% endgeneration %}
"""


@pytest.mark.parametrize("source", [CHATML, BLOCKS], ids=["ChatML", "blocks"])
def test_a_template_renders_as_transformers_renders_it(source: str) -> None:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        conversations=[TALK], chat_template=source, add_generation_prompt=True, **SPECIAL
    )
    assert ChatTemplate(source, SPECIAL).render(TALK) == expected[0]


def test_blocks_leave_no_space_behind() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    template = ChatTemplate(source, {})
    assert template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == "a\nb\n"


def test_the_date_is_todays() -> None:
    today = datetime.now().strftime("%d %b %Y")
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}).render(TALK) == today


def test_a_conversation_that_the_template_refuses_gets_its_reason() -> None:
    template = ChatTemplate("{{ raise_exception('System role not supported') }}", {})
    with pytest.raises(InputError, match="refuses this conversation: System role not supported"):
        template.render(TALK)


def test_a_template_that_is_not_jinja_is_the_bundles_fault() -> None:
    with pytest.raises(BundleError, match="not valid jinja2"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__.sys }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InputError, match="refuses"):
        ChatTemplate(source, {}).render(TALK)
    assert len(TALK) == 4 and TALK[0]["role"] == "system"


def test_a_template_that_runs_into_a_type_error_gets_one_sentence() -> None:
    with pytest.raises(InputError, match="refuses this conversation"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render(TALK)


def test_special_tokens_are_the_manifests(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path, template="{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    template = chat_template(bundle.manifest, Text(bundle))
    assert template is not None and template.render(TALK) == "<bos>|<end>|"


def test_a_bundle_without_a_template_has_none(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path, template=None)
    assert chat_template(bundle.manifest, Text(bundle)) is None


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}], [{"role": "user", "content": " \n"}]])
def test_an_empty_prompt_is_refused(messages: list[Message]) -> None:
    with pytest.raises(InputError, match="prompt is empty"):
        check_messages(messages)


@pytest.mark.parametrize("message", [{"content": "a"}, {"role": "user"}, {"role": "user", "content": None}])
def test_a_malformed_message_is_named(message: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Message 1 .* needs a text under"):
        check_messages([{"role": "user", "content": "a"}, message])  # type: ignore[list-item]


IN_PARTS = {
    "typed": "{% for p in m.content %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}",
    "any": "{% for p in m['content'] %}{{ p.text }}{% endfor %}",
    "first": "{{ m.content[0].text | trim }}",
    "selected": "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('') }}",
    "strict": "{% if m.content is string %}{{ raise_exception('a list of parts') }}{% endif %}{{ m.content[0].text }}",
}
AS_TEXT = {
    "text": "{{ m.content }}",
    "both": "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
}


def loop(said: dict[str, str]) -> str:
    """A template that writes what each role says in a way of its own."""
    roles = "".join(f"{{% if m.role == '{role}' %}}[{role}]{how}{{% endif %}}" for role, how in said.items())
    return f"{{% for m in messages %}}{roles}{{% endfor %}}"


@pytest.mark.parametrize("user", [*IN_PARTS, *AS_TEXT])
@pytest.mark.parametrize("system", ["any", "text"])
def test_content_goes_in_as_the_template_takes_it(user: str, system: str) -> None:
    ways = IN_PARTS | AS_TEXT
    source = loop({"system": ways[system], "user": ways[user], "assistant": ways[user]})
    assert ChatTemplate(source, {}).render(TALK) == (
        "[system]Be brief.[user]Grüße & <b>[assistant]Yes." + ("" if user == "first" else "\n") + "[user]Why?"
    )


def test_a_template_that_wants_a_system_message_first_is_asked_with_one() -> None:
    source = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "{% for m in messages[1:] %}" + IN_PARTS["any"] + "{% endfor %}"
    )
    assert ChatTemplate(source, {}).render(TALK[:2]) == "Grüße & <b>"
    with pytest.raises(InputError, match="no system message"):
        ChatTemplate(source, {}).render(TALK[1:2])


@pytest.mark.parametrize(
    "lost",
    ["{{ m.content.words }}", "{{ m.content[0].words }}", "{% for p in m.content %}{{ p.words }}{% endfor %}", "?"],
)
def test_a_template_that_leaves_out_what_the_user_says_is_refused(lost: str) -> None:
    with pytest.raises(BundleError, match="leaves out what the user says"):
        ChatTemplate(loop({"system": "{{ m.content }}", "user": lost}), {}).check(TALK[1:2])


def test_a_system_message_that_a_template_would_leave_out_is_refused() -> None:
    template = ChatTemplate(loop({"user": "{{ m.content }}"}), {})
    template.check(TALK[1:2])
    with pytest.raises(InputError, match="no place for a message of system"):
        template.check(TALK[:2])


DATED = "{{ strftime_now('%d %b %Y') }} {% for m in messages %}{{ m.content }}{% endfor %}"


def test_that_the_date_is_in_is_said_once_and_a_fixed_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = byte_bundle(tmp_path, DATED)
    text = Text(bundle)
    today, fixed = chat_template(bundle.manifest, text), chat_template(bundle.manifest, text, "2025-03-04")
    assert today is not None and fixed is not None
    for _ in range(2):
        assert fixed.render(TALK[1:2]) == "04 Mar 2025 Grüße & <b>"
    assert not caplog.messages
    for _ in range(2):
        assert today.render(TALK[1:2]) == datetime.now().strftime("%d %b %Y Grüße & <b>")
    (said,) = caplog.messages
    assert "bytes puts today's date into prompts" in said and "--date YYYY-MM-DD" in said


def test_a_clock_that_changes_nothing_is_not_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = "{% set today = strftime_now('%Y') %}{% if tools %}{{ today }}{% endif %}{{ messages[0].content }}"
    bundle = byte_bundle(tmp_path, source)
    template = chat_template(bundle.manifest, Text(bundle))
    assert template is not None and template.render(TALK[1:2]) == "Grüße & <b>"
    assert not caplog.messages


def test_a_date_for_a_template_that_tells_none_is_refused(tmp_path: Path) -> None:
    bundle = byte_bundle(tmp_path, CHATML)
    with pytest.raises(InputError, match="tells the model no date"):
        chat_template(bundle.manifest, Text(bundle), "2025-03-04")
