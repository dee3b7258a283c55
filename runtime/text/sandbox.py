"""Chat templates are programs of strangers: they run in jinja2's sandbox, and here within bounds of work and of text.

Everything that a template does is counted where it happens, in calls that the compiled template makes: each block that
is entered, each value that is made and each item that a filter looks at is a step, and each value's characters are
counted. What could grow at one stroke (``'x' * 10**10``, ``center``, ``replace``, ``format``) is measured before it is
done, and the methods of texts and containers are those that are known here. The bounds grow with the conversation, so
that none is too long for an honest template; they say the same on every machine, and a limit of processor time stands
behind them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from jinja2 import filters, nodes, pass_environment, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edge.runtime.text.meter import ARGUMENTS, BITS, CHECKED, CONTAINERS, ITEM, ROOM, VIEWS, Exhausted, Meter, weigh

CHAIN = 8  # texts that are joined by ``+`` before the result is counted

LONG: tuple[type[Any], ...] = (str, range, *CONTAINERS)

ESCAPED = 12  # characters of one in a URL
PASSED = 6  # a test that looks through a container is a step for every 2**6 items
SEARCHED = 12  # a search that may compare each character with each is a step for every 2**12 comparisons
SLOW = frozenset({"rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip"})
OF_TEXTS = SLOW | {
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
    *("isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower"),
    *("partition", "removeprefix", "removesuffix", "split", "splitlines", "startswith", "swapcase", "title", "upper"),
}
OF_CONTAINERS = frozenset({"items", "keys", "values", "get", "index", "count", "copy"})
# Filters that no chat template has a use for, and whose work grows faster than their text.
LEFT_OUT = ("filesizeformat", "pprint", "striptags", "urlize", "wordwrap", "xmlattr")


GROWING = frozenset({"batch", "center", "indent", "join", "replace", "round", "tojson", "trim", "urlencode"})
# Filters that look at all items before they return, or between two that they yield.
LOOKING = frozenset(
    {
        *("batch", "groupby", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "slice", "sort"),
        *("sum", "unique"),
    }
)
# Tests that look at more than the kind of a value.
COMPARING = frozenset(
    {
        *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan"),
        *("lower", "lt", "ne", "upper"),
    }
)
_PLACE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*(?:\.\d+)?|\{[^{}]*\}")  # of text to format
_INNER = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\d*\.)?\*|%\([^)]*\(|\{[^{}]*\[|\{[^{}]*\{[^{}]*\}")  # one in another


class _Generator(CodeGenerator):
    """Writes the calls that count into a compiled template, and computes nothing while it compiles."""

    def blockvisit(self, statements: Iterable[nodes.Node], frame: Frame) -> None:
        listed = list(statements)
        self.writeline(f"context.meter.step({sum(map(_constant, listed))})")
        super().blockvisit(listed, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            counted = nodes.EnvironmentAttribute("meter.step()", lineno=node.lineno)
            node.test = nodes.And(counted, node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Texts that are joined by ``~``, each of which may be that of a long list."""
        join = "markup_join" if frame.eval_ctx.autoescape else "str_join"
        if frame.eval_ctx.volatile:
            join = "(markup_join if context.eval_ctx.volatile else str_join)"
        self.write(f"context.meter.made({join}(context.meter.texts((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))))")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.Const) and not (frame.eval_ctx.volatile or frame.eval_ctx.autoescape):
            return str(node.value)
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


def _constant(node: nodes.Node) -> int:
    """The characters that a statement writes each time."""
    if not isinstance(node, nodes.Output):
        return 0
    data = (each.data for each in node.nodes if isinstance(each, nodes.TemplateData))
    constants = (str(each.value) for each in node.nodes if isinstance(each, nodes.Const))
    return sum(map(len, data)) + sum(map(len, constants))


def _counting(name: str) -> Callable[..., None]:
    """The visitor of a node that makes a value, which is counted."""
    plain = getattr(CodeGenerator, name)

    def visitor(self: CodeGenerator, node: nodes.Node, frame: Frame, **options: Any) -> None:
        if isinstance(node, nodes.Add) and isinstance(node.left, nodes.Add):  # of a chain every few are counted
            vars(node.left)["chained"] = (vars(node).get("chained", 0) + 1) % CHAIN
        if vars(node).get("chained") or _is_small(node):
            plain(self, node, frame, **options)
            return
        self.write("context.meter.made(")
        plain(self, node, frame, **options)
        self.write(")")

    return visitor


def _is_small(node: nodes.Node) -> bool:
    """True if a node makes no value, or quickly one that is no larger than the template's source."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return getattr(node, "ctx", "load") != "load" or all(isinstance(each, nodes.Const) for each in node.items)
    if isinstance(node, nodes.Getitem):
        return not isinstance(node.arg, nodes.Slice)
    if isinstance(node, nodes.Compare):
        return all(isinstance(each.expr, nodes.Const) for each in node.ops)
    return isinstance(node, nodes.Test) and not node.args


for _name in ("Add", "Call", "Compare", "Dict", "Getitem", "List", "Mod", "Mul", "Pow", "Sub", "Test", "Tuple"):
    setattr(_Generator, f"visit_{_name}", _counting(f"visit_{_name}"))


class _Namespace(Namespace):
    """Shown without what is in it: that may be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Context(Context):
    """The names that a template knows, with the meter of the render."""

    def __init__(self, environment: Bounded, *others: Any, **options: Any) -> None:
        super().__init__(environment, *others, **options)
        self.meter = environment.meter


class Bounded(ImmutableSandboxedEnvironment):
    """The environment of a template. Call `begin` before each render, in its thread."""

    context_class = _Context
    code_generator_class = _Generator
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, optimized=False, finalize=self._shown)
        self._local = threading.local()
        self.begin()
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]
        for name in LEFT_OUT:
            del self.filters[name]
        for name, plain in {**self.filters, "join": _join, "sum": _sum}.items():
            self.add_filter(name, plain)
        tests: dict[str, Any] = self.tests
        tests.update({name: self._counted_test(tests[name]) for name in COMPARING})

    def add_filter(self, name: str, plain: Callable[..., Any]) -> None:
        self.filters[name] = self._counted(name, plain)

    def begin(self, characters: int = 0, messages: int = 0) -> None:
        """Begin a new budget, for a conversation of so many characters."""
        self._local.meter = Meter(characters, messages)

    @property
    def meter(self) -> Meter:
        """The budget of the render in this thread."""
        meter: Meter = self._local.meter
        return meter

    def _shown(self, value: Any) -> str:
        text = value if isinstance(value, str) else str(value)
        self._local.meter.step(len(text), 0)
        return text

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return False for attributes of views and iterators: a template needs none of them, and some make further
        objects."""
        if isinstance(obj, VIEWS) or (isinstance(obj, Iterator) and not isinstance(obj, LoopContext)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is not str and type(argument) is not int:
            self.meter.step(0, CHECKED)  # it may be long, and is looked for as a key and as a text
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for count, many in ((left, right), (right, left)):
                if isinstance(count, int) and isinstance(many, str | list | tuple):
                    self.meter.check(count * weigh(many, self.meter.room)[0] + ITEM * count)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > BITS:
                raise Exhausted(f"it counts beyond 2**{BITS}")
        elif operator == "%" and isinstance(left, str):
            self._check_format(left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) > ARGUMENTS:
            raise Exhausted(f"it calls with more than {ARGUMENTS} arguments")
        method = getattr(__obj, "__wrapped__", __obj)  # `format` is wrapped
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | list | tuple | dict | set | range | int | float | type):
            if method.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            named = {name: each for name, each in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            __self._check_method(owner, method.__name__, args, named)
        return super().call(__context, __obj, *args, **kwargs)

    def _check_method(self, owner: Any, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Refuse a method that is not known here, or that would make more than there is room for."""
        if not isinstance(owner, str):
            if name not in OF_CONTAINERS or not isinstance(owner, list | tuple | dict | range):
                raise SecurityError(f"templates may not call the method {name}")
        elif name in ("center", "ljust", "rjust", "zfill"):
            self._check_filter("center", owner, args, options)
        elif name in ("format", "format_map"):
            self._check_format(owner, [args, options])
        elif name in ("join", "replace"):
            self._check_filter(name, owner, args, options)
        elif name not in OF_TEXTS:
            raise SecurityError(f"templates may not call the method {name}")
        elif name in SLOW:
            self._check_filter("trim", owner, args, options)

    def _counted(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is measured before, where it may grow, and counted afterwards."""
        at = 1 if hasattr(plain, "jinja_pass_arg") else 0  # where the value stands among the arguments

        @wraps(plain)
        def counted(*args: Any, **options: Any) -> Any:
            value, given = args[at], args[at + 1 :]
            if name == "format":
                self._check_format(str(value), [given, options])
            elif name in LOOKING:
                if value:  # of nothing they do nothing
                    args = (*args[:at], self._looked_at(value, [*given, *options.values()]), *given)
                self._check_filter(name, value, given, options)
            else:
                self._check_filter(name, value, given, options)
            return self.meter.made(plain(*args, **options))

        return counted

    def _looked_at(self, values: Iterable[Any], given: list[Any]) -> Iterator[Any]:
        """The values, each of which is compared or filled up with what a filter is given, which counts each time."""
        characters, items, _ = weigh(given, self.meter.room)
        names = sum(each.count(".") + each.count(",") for each in given if isinstance(each, str))  # of attributes
        return self.meter.stepped(values, characters, 1 + names + (items >> PASSED))

    def _counted_test(self, plain: Callable[..., Any]) -> Callable[..., bool]:
        """A test that counts before it looks through what it is given."""

        def counted(*args: Any) -> bool:
            sizes = [len(each) for each in args if isinstance(each, LONG)]
            looks = bool(sizes) and not all(isinstance(each, str) for each in args)
            self.meter.step(0, 1 + CHECKED * looks + (max(sizes, default=0) >> PASSED))
            return bool(plain(*args))

        return counted

    def _check_filter(self, name: str, value: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Measure what a filter, or the method that it is like, would make."""
        if name not in GROWING:
            return
        text, given = str(value) if name != "tojson" else "", (*given, *named.values())
        numbers = [abs(each) for each in given if isinstance(each, int)]
        longest = max([len(str(each)) for each in given], default=0)
        if name in ("batch", "center"):
            self.meter.check(max(numbers, default=0))
        elif name == "indent":
            self.meter.check(len(text) + (len(text.splitlines()) + 1) * max([longest, *numbers, 4]))
        elif name == "join":  # of a separator; the filter counts itself
            self.meter.check(len(text) * len(given[0]) + weigh(given[0], self.meter.room)[0] if given else 0)
        elif name == "replace":
            places = text.count(str(given[0])) if given and not named else len(text) + 1
            self.meter.check(len(text) + places * longest)
        elif name == "round":
            self.meter.check(max([ROOM // BITS * each for each in numbers], default=0))
        elif name == "trim":
            self.meter.step(0, 1 + (len(text) * longest >> SEARCHED))
        elif name == "tojson":
            _, items, depth = weigh(value, self.meter.room)
            self.meter.check(items * (longest + max(numbers, default=0)) * (depth + 1))  # an indent may be a text
        elif name == "urlencode":
            self.meter.check(ESCAPED * weigh(value, self.meter.room)[0])

    def _check_format(self, text: str, given: Any) -> None:
        """Measure what a text with ``%s`` or ``{}`` becomes: the widths it names, and what is put in, in each place."""
        if _INNER.search(text):
            raise Exhausted("it formats text by widths that it computes")
        widths = [digits for found in _PLACE.finditer(text) for digits in re.findall(r"\d+", found[0])]
        if any(len(digits) > len(str(self.meter.room)) for digits in widths):
            raise Exhausted("it makes more text than any model reads")
        characters, items, _ = weigh(given, self.meter.room)
        places = text.count("%") + text.count("{")
        self.meter.check(len(text) + sum(map(int, widths)) + places * (characters + 32 * items))


@pass_eval_context
def _join(eval_ctx: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
    """The filter `join`, which counts while it gathers."""
    environment: Any = eval_ctx.environment
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    gathered, characters = [], 0
    for each in value:
        characters += len(each if isinstance(each, str) else str(each)) + len(str(d))
        environment.meter.check(characters)
        environment.meter.step()
        gathered.append(each)
    return filters.sync_do_join(eval_ctx, gathered, d)


@pass_environment
def _sum(environment: Bounded, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """The filter `sum`, of numbers alone."""
    if not isinstance(start, int | float):
        raise TypeError("only numbers can be summed")
    return filters.sync_do_sum(environment, iterable, attribute, start)
