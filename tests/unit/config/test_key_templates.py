"""Key templates: what they are made from, and that no two different tasks ever share a key."""

from __future__ import annotations

import copy
import enum
import itertools
import pickle
import re
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from celery_fairness.config.key_templates import (
    KEY_CHARACTERS,
    KEY_EXPECTED,
    KeyTemplate,
    KeyValues,
)
from celery_fairness.config.tenants import INVALID, KEY_PATTERN, NONE, key_part, tier_key
from celery_fairness.errors import KeyInvalid, KeyMissing, PolicyInvalid
from tests.support.services import examples

HASHED = re.compile(r"h_[0-9a-f]{32}")


def values(tenant=None, tier=None, queue=None, task="shop.t", **arguments):
    return KeyValues(task, queue, tenant, tier, arguments.get)


def resolved(text, missing="error", **given_values):
    return KeyTemplate(text, missing).resolve(values(**given_values))


def key(text, missing="error", **given_values):
    return resolved(text, missing, **given_values)[0]


@pytest.mark.parametrize(
    "text",
    ["a", "9", "api.stripe.com", "tenant:acme:api:stripe", "A.b_c:d-e", "h_x", "x" * 255, "a::b."],
)
def test_S29_a_key_without_fields_stands_as_it_is(text):
    template = KeyTemplate(text)
    assert template.static
    assert (template.arguments, template.private) == ((), False)
    assert template.resolve(values(tenant="42")) == (text, False)


@pytest.mark.parametrize(
    ("text", "made", "private"),
    [
        ("tenant:{tenant}", "tenant:42", True),
        ("{tenant}", "42", True),
        ("queue:{queue}", "queue:analysis_default", False),
        ("type:{task}", "type:shop.tasks.analyze", False),
        ("tier:{tier}", "tier:pro", False),
        ("customer:{args.customer_id}", "customer:7", False),
        ("{tier}.{tenant}:api-{args.customer_id}.", "pro.42:api-7.", True),
        ("{tenant}:{tenant}", "42:42", True),
        ("h_{args.customer_id}", "h_7", False),
    ],
)
def test_S29_a_key_is_made_from_the_fields_of_a_task(text, made, private):
    template = KeyTemplate(text)
    assert not template.static
    assert template.private is private
    given_values = values(
        tenant="42", tier="pro", queue="analysis_default", task="shop.tasks.analyze", customer_id=7
    )
    assert template.resolve(given_values) == (made, private)


def test_a_template_names_the_arguments_that_it_reads():
    template = KeyTemplate(
        "{args.order.customer.id}:{queue}:{args.region}:{args.order.customer.id}"
    )
    assert template.arguments == ("order.customer.id", "region", "order.customer.id")


def test_a_template_of_the_tenant_is_the_key_of_its_tier():
    for tenant in ("42", "Größe", "h_1", "a:b", NONE, INVALID):
        assert key("tenant:{tenant}", tenant=tenant) == tier_key(tenant)


class Plan(enum.StrEnum):
    TEAM = "team-7"


class Keys(str, enum.Enum):  # noqa: UP042 - the older form has another str()
    STRIPE = "api.stripe.com"


class Shouting(str):
    """A str that lies about itself."""

    def __str__(self):
        return "SOMEBODY ELSE"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("42", "42"),
        (42, "42"),
        (0, "0"),
        ("0", "0"),
        (2**80, "1208925819614629174706176"),
        (UUID("12345678123456781234567812345678"), "12345678-1234-5678-1234-567812345678"),
        (Plan.TEAM, "team-7"),
        (Shouting("me"), "me"),
        ("a.b:c_d-e", "a.b:c_d-e"),
        ("x" * 120, "x" * 120),
        ("hh_", "hh_"),
        (-7, key_part("-7")),
        ("Größe", "h_aedc3f80989a6546962705852b2f4a48"),
        ("{42}", "h_0c6a880d5918298b9c3c4093ab8d128d"),
        ("h_0", key_part("h_0")),
        ("_none", key_part("_none")),
        ("a b", key_part("a b")),
        ("a\n", key_part("a\n")),
        ("x" * 121, key_part("x" * 121)),
        ("x" * 100_000, key_part("x" * 100_000)),
    ],
)
def test_a_value_is_written_as_a_tenant_is(value, part):
    assert key("c:{args.value}", value=value) == f"c:{part}"
    assert key("{args.value}", value=value) == part


def test_a_template_keeps_plain_text():
    template = KeyTemplate(Keys.STRIPE)
    assert type(template.text) is str
    assert template.resolve(values()) == ("api.stripe.com", False)


@pytest.mark.parametrize(
    ("text", "a", "hashed"),
    [
        ("{args.a}:{args.b}", "x:y", True),
        ("{args.a}:{args.b}", "x.y-z", False),
        ("{args.a}.{args.b}", "x.y", True),
        ("{args.a}.{args.b}", "x:y-z", False),
        ("{args.a}-{args.b}", "x-y", True),
        ("{args.a}-{args.b}", "x:y.z", False),
        ("{args.a}:b.{args.b}", "x.y", True),
        ("{args.a}:b.{args.b}", "x:y", True),
        ("{args.a}:b.{args.b}", "x-y", False),
        # Text outside the fields separates nothing.
        ("a:{args.a}-{args.b}.c", "x:y.z", False),
    ],
)
def test_a_value_with_a_separator_of_its_template_is_hashed(text, a, hashed):
    made = key(text, a=a, b="b")
    assert (a not in made) is hashed
    assert bool(re.search(HASHED, made)) is hashed


def test_a_reserved_tenant_is_one_that_nobody_can_spell():
    assert key("{tenant}:api", tenant=NONE) == "h_none:api"
    assert key("api:{tenant}", tenant=NONE) == "api:_none"
    for text in ("{tenant}:api", "api:{tenant}", "h{tenant}"):
        made = key(text, tenant=NONE)
        assert KEY_PATTERN.fullmatch(made)
        for spelled in ("_none", "h_none", "none"):
            assert key(text, tenant=spelled) != made
        # What is an argument comes from outside, the reserved object too.
        assert key(text.replace("tenant", "args.a"), a=NONE) == key(text, tenant="_none")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (True, "expected str, int or UUID, got: bool"),
        (False, "expected str, int or UUID, got: bool"),
        (1.0, "expected str, int or UUID, got: float"),
        (0.0, "expected str, int or UUID, got: float"),
        (float("nan"), "expected str, int or UUID, got: float"),
        (Decimal(4), "expected str, int or UUID, got: Decimal"),
        (b"42", "expected str, int or UUID, got: bytes"),
        ([], "expected str, int or UUID, got: list"),
        (["42"], "expected str, int or UUID, got: list"),
        ((), "expected str, int or UUID, got: tuple"),
        ({}, "expected str, int or UUID, got: dict"),
        ({"id": 42}, "expected str, int or UUID, got: dict"),
        (object(), "expected str, int or UUID, got: object"),
        ("\ud800", "expected text that is valid UTF-8, got: lone surrogates"),
        ("a:\udfff", "expected text that is valid UTF-8, got: lone surrogates"),
        pytest.param(
            10**5000, "expected a whole number of at most 4300 digits, got: more", id="digits"
        ),
    ],
)
@pytest.mark.parametrize("missing", ["error", "empty"])
@pytest.mark.parametrize("text", ["c:{args.value}", "c:{args.value}:{task}"])
def test_a_value_of_another_type_is_an_error_that_names_task_key_and_field(
    value, problem, missing, text
):
    with pytest.raises(KeyInvalid) as caught:
        key(text, missing, value=value)
    error = caught.value
    assert error.problem == problem
    assert (error.task, error.key, error.field) == ("shop.t", text, "args.value")
    assert str(error) == f"task shop.t: key {text!r}: {{args.value}}: {problem}"


def test_what_a_reader_of_arguments_raises_is_named_and_cut():
    def reader(path):
        raise RuntimeError(f"{path} " + "x" * 100_000)

    with pytest.raises(KeyInvalid) as caught:
        KeyTemplate("c:{args.a.b}").resolve(KeyValues("shop.t", argument=reader))
    assert str(caught.value).startswith(
        "task shop.t: key 'c:{args.a.b}': {args.a.b}: expected a value, got: RuntimeError: a.b xx"
    )
    assert len(str(caught.value)) < 600


def test_arguments_that_nobody_can_read_are_an_error_and_not_missing():
    with pytest.raises(KeyInvalid, match="LookupError: no arguments to read 'a' from"):
        KeyTemplate("c:{args.a}", "empty").resolve(KeyValues("shop.t"))


@pytest.mark.parametrize("field", ["tenant", "tier", "queue", "args.value", "args.a.b"])
@pytest.mark.parametrize("nothing", [None, ""])
def test_a_field_without_a_value_is_an_error_that_says_what_to_do(field, nothing):
    named = {field.removeprefix("args."): nothing}
    with pytest.raises(KeyMissing) as caught:
        key(f"c:{{{field}}}", **named)
    error = caught.value
    assert (error.task, error.key, error.field) == ("shop.t", f"c:{{{field}}}", field)
    assert str(error) == (
        f"task shop.t: key 'c:{{{field}}}': {{{field}}} has no value: send the task with one, "
        "or declare the limit with missing='empty', which counts such tasks together"
    )


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("c:{args.value}", "c:"),
        ("c:{args.value}:{task}", "c::shop"),
        ("c:{tenant}-{args.value}", "c:-"),
        ("c{args.value}.x", "c.x"),
    ],
)
@pytest.mark.parametrize("nothing", [None, ""])
def test_a_field_without_a_value_is_empty_where_that_is_declared(text, made, nothing):
    assert key(text, "empty", value=nothing, tenant=nothing, task="shop") == made


def test_a_key_that_is_too_long_is_hashed_as_a_whole():
    text = "{args.a}:{args.b}:{args.c}"
    fits = key(text, a="a" * 100, b="b" * 100, c="c" * 53)
    assert len(fits) == KEY_CHARACTERS
    made = key(text, a="a" * 100, b="b" * 100, c="c" * 54)
    assert HASHED.fullmatch(made)
    assert made == key_part("a" * 100 + ":" + "b" * 100 + ":" + "c" * 54)
    assert made != key(text, a="a" * 100, b="b" * 100, c="c" * 55)
    long = "x" * 250 + "{tenant}"
    assert key(long, tenant="12345") == "x" * 250 + "12345"
    assert HASHED.fullmatch(key(long, tenant="123456"))


UNKNOWN = "key: expected the fields {tenant}, {tier}, {task}, {queue} or {args.NAME}, got: "


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("tennant", ", did you mean 'tenant'?"),
        ("Queue", ", did you mean 'queue'?"),
        ("tier ", ", did you mean 'tier'?"),
        ("tenant!r", ", did you mean 'tenant'?"),
        ("tenant.id", ", did you mean 'tenant'?"),
        ("customer_id", ", did you mean 'args.customer_id'?"),
        ("order.customer.id", ", did you mean 'args.order.customer.id'?"),
        ("kwargs.order.id", ", did you mean 'args.order.id'?"),
        ("arg.order", ", did you mean 'args.order'?"),
        ("", ""),
        ("0", ""),
        ("a b", ""),
        (".a", ""),
        ("args[0]", ""),
    ],
)
def test_an_unknown_field_is_an_error_with_a_suggestion(field, hint):
    with pytest.raises(PolicyInvalid) as caught:
        KeyTemplate(f"c:{{{field}}}")
    assert caught.value.problems == (f"{UNKNOWN}{field!r}{hint}",)


def test_every_problem_of_a_template_is_named():
    text = "{args.}{customer}/" + "x" * 255
    shown = repr(text)[:79] + "…"
    with pytest.raises(PolicyInvalid) as caught:
        KeyTemplate(text, "zero")
    assert caught.value.problems == (
        "missing: expected 'error' or 'empty', got: 'zero'",
        "key: expected a parameter's name behind 'args.', got: 'args.'",
        f"{UNKNOWN}'customer', did you mean 'args.customer'?",
        f"key: expected {KEY_EXPECTED}, got: {shown}",
        f"key: expected '.', ':' or '-' between two fields, got: {shown}",
        "key: expected at most 255 characters, got: 258",
    )


def test_a_template_is_one_value():
    template = KeyTemplate("c:{args.a}:{tenant}", "empty")
    assert template == KeyTemplate("c:{args.a}:{tenant}", "empty")
    assert hash(template) == hash(KeyTemplate("c:{args.a}:{tenant}", "empty"))
    assert template != KeyTemplate("c:{args.a}:{tenant}")
    assert repr(template) == "KeyTemplate(text='c:{args.a}:{tenant}', missing='empty')"
    for again in (pickle.loads(pickle.dumps(template)), copy.deepcopy(template)):
        assert again == template
        assert again.resolve(values(a=1, tenant="42")) == ("c:1:42", True)


FIELDS = ("tenant", "tier", "queue", "args.a", "args.b", "args.c.d")

# Few characters, so that values which could be confused are found.
confusable = st.text("ab_h.:-", max_size=5)
hostile = st.one_of(
    st.none(),
    confusable,
    st.integers(-3, 12),
    st.uuids(),
    st.text(max_size=8),
    st.text(st.characters(), max_size=4),
    st.text("h_0123456789abcdef", min_size=30, max_size=36),
    st.integers(117, 124).map(lambda n: "x" * n),
    st.sampled_from(["h_", "_none", "h_none", "a:b", "42:a", NONE, "\ud800", "", "é", "e\u0301"]),
)
between = st.builds(
    lambda before, separator, after: before + separator + after,
    st.text("ab_h.:-", max_size=3),
    st.sampled_from(".:-"),
    st.text("ab_h.:-", max_size=3),
)


@st.composite
def templates(draw):
    names = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4))
    missing = draw(st.sampled_from(["error", "empty"]))
    first = st.from_regex(r"\A[abh][ab_h.:-]{0,3}\Z")
    text = draw(first) if missing == "empty" or draw(st.booleans()) else ""
    for number, name in enumerate(names):
        text += (draw(between) if number else "") + f"{{{name}}}"
    return KeyTemplate(text + draw(st.text("ab_h.:-", max_size=3)), missing)


NOTHING = dict.fromkeys(FIELDS)
given_values = st.fixed_dictionaries(dict.fromkeys(FIELDS, hostile))


def made_from(template, given):
    """The key of a template, None where the values are rejected."""
    tenant, tier, queue = (given[name] for name in ("tenant", "tier", "queue"))
    arguments = {name.removeprefix("args."): value for name, value in given.items()}
    try:
        return template.resolve(KeyValues("shop.t", queue, tenant, tier, arguments.get))[0]
    except (KeyMissing, KeyInvalid):
        return None


def meaning(template, given):
    """What the key must tell apart: the value of every field as text, reserved tenants apart."""
    said = []
    for name in re.findall(r"\{([^}]*)\}", template.text):
        value = given[name]
        text = "" if value is None else str.__str__(value) if isinstance(value, str) else str(value)
        said.append((text, name == "tenant" and value is NONE))
    return said


def readings(literals, text):
    """Every way in which ``text`` could have been made of ``literals`` with values between them."""
    if not text.startswith(literals[0]):
        return
    rest = text[len(literals[0]) :]
    if len(literals) == 1:
        if not rest:
            yield ()
        return
    for end in range(len(rest) + 1):
        yield from ((rest[:end], *more) for more in readings(literals[1:], rest[end:]))


def attacks(template, given_to_it, made):
    """Values of somebody who wants the key ``made`` and has read how keys are made."""
    yield {name: None if value is None else str(value) for name, value in given_to_it.items()}
    pieces = re.split(r"\{([^}]*)\}", template.text)
    for values_between in itertools.islice(readings(pieces[::2], made), 100):
        yield {**given_to_it, **dict(zip(pieces[1::2], values_between, strict=True))}


@given(templates(), given_values)
@example(
    KeyTemplate("{args.a}:{args.b}.{tier}"), {**NOTHING, "args.a": 1, "args.b": "x.y", "tier": 2}
)
@example(KeyTemplate("{args.a}:b.{args.b}"), {**NOTHING, "args.a": "a", "args.b": "x"})
@example(KeyTemplate("k:{args.a}"), {**NOTHING, "args.a": "a b"})
@example(KeyTemplate("k:{tenant}"), {**NOTHING, "tenant": NONE})
@example(KeyTemplate("{tenant}"), {**NOTHING, "tenant": NONE})
@settings(max_examples=examples(200))
def test_nobody_who_knows_the_rules_finds_other_values_with_the_same_key(template, given_to_it):
    made = made_from(template, given_to_it)
    assume(made is not None)
    for other in attacks(template, given_to_it, made):
        same = meaning(template, given_to_it) == meaning(template, other)
        assert (made_from(template, other) == made) == same, other


@given(templates(), given_values, given_values, st.sets(st.sampled_from(FIELDS)))
@settings(max_examples=examples(300))
def test_two_different_tasks_never_share_a_key_of_one_template(template, one, other, same):
    # Values that agree in some fields, as those of a tenant who tries things do.
    other = {**other, **{name: one[name] for name in same}}
    first, second = made_from(template, one), made_from(template, other)
    assume(first is not None and second is not None)
    assert (first == second) == (meaning(template, one) == meaning(template, other))


@given(
    st.tuples(confusable, confusable, confusable),
    st.tuples(confusable, confusable, confusable),
    between,
    between,
)
@example(("a", "b:c", ""), ("a:b", "c", ""), ":", ":")
@example(("", "a", "b"), ("a", "", "b"), "::", ":")
@example(("a", "", ""), ("", "", "a"), "a:a", "a.a")
@settings(max_examples=examples(300))
def test_text_does_not_move_from_one_field_to_the_next(one, other, left, right):
    template = KeyTemplate(f"k{{args.a}}{left}{{args.b}}{right}{{args.c}}", "empty")
    first, second = (
        key(template.text, "empty", a=each[0], b=each[1], c=each[2]) for each in (one, other)
    )
    assert (first == second) == (one == other)


@given(templates(), given_values)
@settings(max_examples=examples(300))
def test_a_key_is_rejected_only_for_what_is_missing_or_no_text_and_else_the_open_job_spec_allows_it(
    template, given_to_it
):
    names = re.findall(r"\{([^}]*)\}", template.text)
    used = [given_to_it[name] for name in names]
    absent = any(value is None or value == "" for value in used)
    broken = any(isinstance(v, str) and re.search("[\ud800-\udfff]", v) for v in used)
    rejected = (absent and template.missing == "error") or broken
    made = made_from(template, given_to_it)
    assert (made is None) == rejected
    if made is not None:
        assert KEY_PATTERN.fullmatch(made)
        assert len(made) <= KEY_CHARACTERS


def test_the_values_of_a_task_do_not_change():
    with pytest.raises(AttributeError):
        KeyValues("shop.t").tenant = "42"
    with pytest.raises(AttributeError):
        KeyTemplate("a").text = "b"
