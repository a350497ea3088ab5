"""Where a task says its tenant is: by a parameter's name, by a path, or by a callable."""

from __future__ import annotations

import functools
from collections import UserDict
from types import SimpleNamespace

import pytest

from celery_fairness.config.key_templates import KeyTemplate, KeyValues
from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.errors import (
    KeyInvalid,
    KeyMissing,
    PolicyInvalid,
    TaskDeclarationError,
    TenantInvalid,
)
from celery_fairness.message.task_options import (
    ArgumentSource,
    LimitSource,
    TenantSource,
    argument_sources,
    arguments_of,
    check_service,
)


def plain(repository, user_id=None):
    pass


def required(user_id):
    pass


def with_default(repository, user_id="everybody"):
    pass


def keyword_only(repository, *, user_id=None):
    pass


def after_many(first, *rest, user_id=None):
    pass


def with_kwargs(repository, **options):
    pass


def positional_only(user_id, /, repository=None):
    pass


class Bound:
    def run(self, repository, user_id=None):
        pass


@pytest.mark.parametrize(
    ("body", "args", "kwargs", "tenant"),
    [
        (plain, ("r", "42"), {}, "42"),
        (plain, ("r",), {"user_id": "42"}, "42"),
        (plain, (), {"repository": "r", "user_id": 42}, "42"),
        (plain, ("r",), {}, None),
        (plain, ("r", None), {}, None),
        (plain, ("r", ""), {}, None),
        (plain, [["r"], "42"], {}, "42"),
        (required, ("42",), {}, "42"),
        (required, (), {}, None),
        (with_default, ("r",), {}, "everybody"),
        (with_default, ("r", "42"), {}, "42"),
        (with_default, ("r", None), {}, None),
        (with_default, ("r",), {"user_id": None}, None),
        (keyword_only, ("r",), {"user_id": "42"}, "42"),
        (keyword_only, ("r", "not this"), {}, None),
        (after_many, ("a", "b", "c"), {"user_id": "42"}, "42"),
        (after_many, ("a", "b", "c"), {}, None),
        (with_kwargs, ("r",), {"user_id": "42"}, "42"),
        (with_kwargs, ("r", "not this"), {}, None),
        (Bound().run, ("r", "42"), {}, "42"),
        (functools.partial(plain, "r"), ("42",), {}, "42"),
    ],
)
def test_a_parameter_is_found_by_position_by_name_and_by_default(body, args, kwargs, tenant):
    assert TenantSource("shop.t", "user_id", body).read(args, kwargs) == tenant


class Order:
    def __init__(self, customer):
        self.customer = customer


@pytest.mark.parametrize(
    ("order", "tenant"),
    [
        ({"customer": {"id": 42}}, "42"),
        (UserDict({"customer": UserDict({"id": 42})}), "42"),
        (Order(SimpleNamespace(id=42)), "42"),
        (Order({"id": 42}), "42"),
        ({"customer": SimpleNamespace(id="42")}, "42"),
        (None, None),
        ({}, None),
        ({"customer": None}, None),
        ({"customer": {}}, None),
        (Order(None), None),
        (Order(SimpleNamespace(id=None)), None),
    ],
)
def test_a_dotted_path_goes_over_mappings_and_objects(order, tenant):
    def body(order):
        pass

    source = TenantSource("shop.t", "order.customer.id", body)
    assert source.read((order,), {}) == tenant
    assert source.read((), {"order": order}) == tenant


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (Order(SimpleNamespace()), "AttributeError"),
        ("a string", "AttributeError: 'str' object has no attribute 'customer'"),
        ([1], "AttributeError: 'list' object has no attribute 'customer'"),
        ({"customer": {"id": [42]}}, "expected str, int or UUID, got: list"),
        ({"customer": {"id": True}}, "expected str, int or UUID, got: bool"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_that_names_task_and_path(order, problem):
    source = TenantSource("shop.t", "order.customer.id", lambda order: None)
    with pytest.raises(TenantInvalid) as caught:
        source.read((order,), {})
    assert (caught.value.task, caught.value.parameter) == ("shop.t", "order.customer.id")
    assert problem in str(caught.value)
    assert str(caught.value).startswith("task shop.t: tenant from 'order.customer.id': ")


@pytest.mark.parametrize(
    ("call", "tenant"),
    [
        (lambda args, kwargs: kwargs["user"], "42"),
        (lambda args, kwargs: args[0], "7"),
        (lambda args, kwargs: None, None),
        (lambda args, kwargs: "", None),
        (lambda args, kwargs: 42, "42"),
    ],
)
def test_a_callable_is_given_args_and_kwargs(call, tenant):
    source = TenantSource("shop.t", call, plain)
    assert source.read((7,), {"user": "42"}) == tenant


class Broken(Exception):
    pass


def raising(error):
    def call(args, kwargs):
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda args, kwargs: kwargs["nobody"], "expected a value, got: KeyError: 'nobody'"),
        (raising(Broken("down")), "expected a value, got: Broken: down"),
        (lambda args: "42", "got: TypeError: "),
        (lambda args, kwargs: 4.2, "expected str, int or UUID, got: float"),
        (lambda args, kwargs: "x" * 201, "expected at most 200 bytes, got: 201"),
    ],
)
def test_a_callable_that_raises_or_answers_nonsense_is_an_error_that_names_the_task(call, problem):
    with pytest.raises(TenantInvalid) as caught:
        TenantSource("shop.t", call, plain).read((), {})
    assert str(caught.value).startswith("task shop.t: tenant from 'tenant=': ")
    assert problem in str(caught.value)


def test_what_a_callable_says_is_cut():
    with pytest.raises(TenantInvalid) as caught:
        TenantSource("shop.t", raising(Broken("x" * 100_000)), plain).read((), {})
    assert len(str(caught.value)) < 600


def test_what_ends_the_process_is_not_taken_for_a_wrong_tenant():
    with pytest.raises(KeyboardInterrupt):
        TenantSource("shop.t", raising(KeyboardInterrupt()), plain).read((), {})


@pytest.mark.parametrize(
    ("body", "option", "names"),
    [
        (plain, "userid", "repository, user_id"),
        (plain, "USER_ID", "repository, user_id"),
        (plain, "usr.id", "repository, user_id"),
        (keyword_only, "user", "repository, user_id"),
        (lambda: None, "user_id", "none"),
        (positional_only, "user_id", "repository"),
        (after_many, "rest", "first, user_id"),
        (with_kwargs, "options", "repository"),
    ],
)
def test_a_parameter_that_is_not_there_is_an_error_that_names_those_that_are(body, option, names):
    with pytest.raises(TaskDeclarationError) as caught:
        TenantSource("shop.t", option, body)
    assert str(caught.value) == (
        "task shop.t: option 'tenant': expected one of the task's parameters "
        f"({names}), got: {option.partition('.')[0]!r}"
    )


@pytest.mark.parametrize("option", ["", 3, True, [], ("user_id",), {"user_id"}, 4.2])
def test_an_option_of_another_type_is_an_error(option):
    with pytest.raises(TaskDeclarationError) as caught:
        TenantSource("shop.t", option, plain)
    assert str(caught.value) == (
        "task shop.t: option 'tenant': expected a parameter's name, a dotted path or a callable "
        f"(args, kwargs), got: {option!r}"
    )


@pytest.mark.parametrize("service", [None, "analysis", "spec_view", "a-b", "9"])
def test_a_service_is_a_name_that_queues_can_have(service):
    check_service("shop.t", service)


@pytest.mark.parametrize("service", ["", "a b", "a.b", "ä", 3, True, ["analysis"], "x" * 101])
def test_a_service_that_queues_cannot_have_is_an_error(service):
    with pytest.raises(TaskDeclarationError) as caught:
        check_service("shop.t", service)
    assert str(caught.value) == (
        "task shop.t: option 'service': expected 1 to 100 letters, digits, '_' or '-' "
        f"(queue names are made from it), got: {service!r}"
    )


def test_an_argument_is_read_as_it_is():
    def body(order, *, tries=3):
        pass

    amount = ArgumentSource("shop.t", "order.amount", body, "limits")
    assert amount.read([{"amount": [1.5]}], {}) == [1.5]
    assert amount.read([{}], {}) is None
    assert ArgumentSource("shop.t", "tries", body, "limits").read([], {}) == 3
    with pytest.raises(AttributeError):
        amount.read(["text"], {})


CUSTOMER = KeyTemplate("customer:{args.order.customer.id}:{args.region}")


def by_customer(order, region="eu"):
    pass


@pytest.mark.parametrize(
    ("args", "kwargs", "key"),
    [
        (({"customer": {"id": 42}},), {}, "customer:42:eu"),
        (({"customer": {"id": 42}}, "us"), {}, "customer:42:us"),
        ((), {"order": Order(SimpleNamespace(id=42)), "region": "us"}, "customer:42:us"),
    ],
)
def test_a_key_reads_arguments_as_a_tenant_does(args, kwargs, key):
    named = [*arguments_of(CUSTOMER), *arguments_of(KeyTemplate("r:{args.region}"))]
    sources = argument_sources("shop.t", named, by_customer)
    values = KeyValues("shop.t", argument=lambda path: sources[path].read(args, kwargs))
    assert CUSTOMER.resolve(values) == (key, False)


def test_a_key_whose_path_leads_nowhere_is_an_error_that_names_task_key_and_field():
    sources = argument_sources("shop.t", arguments_of(CUSTOMER), by_customer)
    with pytest.raises(KeyInvalid) as caught:
        CUSTOMER.resolve(
            KeyValues("shop.t", argument=lambda path: sources[path].read(("text",), {}))
        )
    assert str(caught.value) == (
        f"task shop.t: key {CUSTOMER.text!r}: {{args.order.customer.id}}: "
        "expected a value, got: AttributeError: 'str' object has no attribute 'customer'"
    )


@pytest.mark.parametrize(
    ("body", "names"),
    [(by_customer, "order, region"), (lambda: None, "none"), (positional_only, "repository")],
)
def test_a_key_of_a_parameter_that_is_not_there_is_an_error_that_names_those_that_are(body, names):
    with pytest.raises(TaskDeclarationError) as caught:
        argument_sources("shop.t", arguments_of(KeyTemplate("c:{args.custmer.id}")), body)
    assert str(caught.value) == (
        "task shop.t: option 'limits': key 'c:{args.custmer.id}': "
        f"expected one of the task's parameters ({names}), got: 'custmer'"
    )


def with_estimate(prompt, estimate=None):
    pass


TOKENS = RateLimitPolicy("tokens", rate="100/m", units="args.estimate")


def limits_of(option, *args, **kwargs):
    header = LimitSource("shop.t", option, with_estimate).of(
        None, {"v": 1}, args, kwargs, lambda: None
    )
    return header["limits"]


@pytest.mark.parametrize(("args", "kwargs"), [(("p", 7), {}), (("p",), {"estimate": 7})])
def test_a_limit_takes_the_units_that_an_argument_has(args, kwargs):
    (limit,) = limits_of([TOKENS], *args, **kwargs)
    assert limit["units"] == 7


def test_an_argument_may_have_more_units_than_the_rate():
    (limit,) = limits_of([TOKENS], "p", 101)
    assert limit["units"] == 101


@pytest.mark.parametrize("value", [0, 2.5, 1_000_001])
def test_an_argument_that_is_no_number_of_slots_is_an_error(value):
    gpu = RateLimitPolicy("gpu", concurrency=80, slots="args.estimate")
    (limit,) = limits_of([gpu], "p", 500)
    assert limit["slots"] == 500
    with pytest.raises(KeyInvalid) as caught:
        limits_of([gpu], "p", value)
    assert str(caught.value) == (
        "task shop.t: key 'gpu': {args.estimate}: slots: expected a whole number from 1 to "
        f"1000000, got: {value!r}"
    )


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "7", 1_000_000_001])
def test_an_argument_that_is_no_amount_is_an_error_that_names_key_and_field(value):
    with pytest.raises(KeyInvalid) as caught:
        limits_of([TOKENS], "p", value)
    assert str(caught.value) == (
        "task shop.t: key 'tokens': {args.estimate}: units: expected a whole number from 1 to "
        f"1000000000, got: {value!r}"
    )


def test_without_a_value_a_task_has_no_units_or_one():
    with pytest.raises(KeyMissing):
        limits_of([TOKENS], "p")
    empty = RateLimitPolicy("tokens", rate="100/m", units="args.estimate", missing="empty")
    (limit,) = limits_of([empty], "p")
    assert limit["units"] == 1


def test_an_amount_of_a_parameter_that_is_not_there_is_an_error_at_the_declaration():
    with pytest.raises(TaskDeclarationError) as caught:
        LimitSource(
            "shop.t", [RateLimitPolicy("t", rate="9/m", units="args.estimat")], with_estimate
        )
    assert str(caught.value) == (
        "task shop.t: option 'limits': key 't': units: expected one of the task's parameters "
        "(prompt, estimate), got: 'estimat'"
    )


def test_a_process_that_does_not_know_the_task_sends_no_amount_from_an_argument():
    with pytest.raises(PolicyInvalid) as caught:
        LimitSource("shop.t", (), None).of([TOKENS], {"v": 1}, (), {}, lambda: None)
    assert "expected amounts without arguments" in str(caught.value)
