"""The errors: one tree, drawn in one docstring; facts as fields; whole after pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from celery_fairness import errors
from celery_fairness.errors import (
    BacklogFull,
    DeliveriesExhausted,
    DuplicateTask,
    FairnessError,
    HeaderInvalid,
    KeyInvalid,
    KeyMissing,
    LimiterUnavailable,
    MessageUnreadable,
    NotFound,
    NotWired,
    NotWithPartitions,
    PolicyInvalid,
    ProblemsError,
    PublishFailed,
    RateLimitDropped,
    RateLimitExceeded,
    SettingsError,
    TaskDeclarationError,
    TaskExists,
    TenantError,
    TenantInvalid,
    TenantMissing,
    Unroutable,
    got,
    suggestion,
)

EXAMPLES = [
    (ProblemsError("a: expected b, got: c"), ("problems",)),
    (SettingsError("a: expected b, got: c", "d: expected e, got: f"), ("problems",)),
    (SettingsError(), ("problems",)),
    (NotWired("shop"), ("app",)),
    (TaskDeclarationError("shop.t", "tenant", "expected x"), ("task", "option", "problem")),
    (TenantError("anything"), ()),
    (TenantInvalid("expected str"), ("problem", "task", "parameter")),
    (TenantInvalid("expected str", "shop.t", "user_id"), ("problem", "task", "parameter")),
    (TenantMissing("shop.t"), ("task",)),
    (PolicyInvalid("a: expected b, got: c", "d: expected e, got: f"), ("problems",)),
    (PolicyInvalid(), ("problems",)),
    (KeyMissing("shop.t", "customer:{args.customer}", "args.customer"), ("task", "key", "field")),
    (
        KeyInvalid("expected str", "shop.t", "customer:{args.customer}", "args.customer"),
        ("problem", "task", "key", "field"),
    ),
    (HeaderInvalid("v: expected 1"), ("problem",)),
    (BacklogFull("tenant:42", 100, 100), ("key", "limit", "waiting")),
    (Unroutable("events", "jobs.new"), ("exchange", "routing_key")),
    (
        LimiterUnavailable("redis://h:6379/0", "refused"),
        ("address", "problem", "is_broker", "is_not_ready", "has_answered"),
    ),
    (
        NotWithPartitions.of("redis://h:6379/0", "overview"),
        ("address", "problem", "is_broker", "has_answered"),
    ),
    (
        DeliveriesExhausted("shop.t", "id1", 5, "celery"),
        ("task", "task_id", "deliveries", "queue"),
    ),
    (MessageUnreadable("shop.t", "id1", "celery"), ("task", "task_id", "queue")),
    (RateLimitDropped("shop.t", "id1", "api"), ("task", "task_id", "key")),
    (TaskExists("id1"), ("task_id",)),
    (
        DuplicateTask("shop.t", "id1", "sync:7", "id2", "dropped"),
        ("task", "task_id", "key", "of", "how"),
    ),
    (
        PublishFailed("shop.t", "id1", "shop", "celery", "no queue"),
        ("task", "task_id", "exchange", "routing_key", "problem"),
    ),
    (NotFound("task", "id1", "is no dead letter"), ("what", "name", "problem")),
    (RateLimitExceeded(1.5, None, "api"), ("until", "retry_after", "key")),
    (RateLimitExceeded(retry_after="7"), ("until", "retry_after", "key")),
    (FairnessError("anything", 3), ()),
]


def classes():
    found = [FairnessError]
    for cls in found:
        found += [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize(("error", "fields"), EXAMPLES)
@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_an_error_is_whole_after_pickling_and_copying(error, fields, again):
    found = again(error)
    assert type(found) is type(error)
    assert (str(found), found.args) == (str(error), error.args)
    assert [getattr(found, f) for f in fields] == [getattr(error, f) for f in fields]


def test_every_error_is_looked_at_here():
    assert {type(error) for error, _ in EXAMPLES} == set(classes())


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    drawn = {}
    stack = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(.*)$", line)
        if match is None:
            continue
        depth = len(match.group(1)) // 4
        del stack[depth:]
        builtin = re.search(r"\((\w+)\)\s*$", match.group(3))
        drawn[match.group(2)] = (stack[-1] if stack else None, builtin and builtin.group(1))
        stack.append(match.group(2))
    assert set(drawn) == {cls.__name__ for cls in classes()}
    for name, (parent, builtin) in drawn.items():
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert bases == [each for each in (parent or "Exception", builtin) if each], name


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (NotWired("shop"), "add 'fairness = Fairness(app)'"),
        (TenantMissing("shop.t"), "set no_tenant to 'bypass' or 'shared'"),
        (KeyMissing("shop.t", "k:{args.a}", "args.a"), "with missing='empty'"),
        (BacklogFull("tenant:42", 7, 9), "9 tasks of 'tenant:42' wait, and max_waiting is 7: send"),
        (Unroutable("events", "new"), "start a worker that consumes the queue"),
        (LimiterUnavailable("redis://h", "refused"), "set FAIRNESS_REDIS_URL"),
        (LimiterUnavailable("redis://h", "refused", True), "correct broker_url"),
        (
            LimiterUnavailable("redis://h", "no", has_answered=True),
            "password in FAIRNESS_REDIS_URL",
        ),
        (
            LimiterUnavailable("redis://h", "SCHEMA the tables have 9", has_answered=True),
            "docs/how-to/upgrade.md has the rules for another schema",
        ),
        (DeliveriesExhausted("shop.t", "id1", 5, "celery"), "dead letters of queue 'celery'"),
        (MessageUnreadable("shop.t", "id1", "celery"), "dead letters of queue 'celery'"),
        (RateLimitDropped("shop.t", "id1", "api"), "with on_limit='wait' or 'reschedule'"),
        (TaskExists("id1"), "or send with on_duplicate='replace'"),
        (DuplicateTask("shop.t", "id1", "sync:7", "id2", "dropped"), "wait for that one"),
        (PublishFailed("shop.t", "id1", "", "q", "no queue"), "declare its queue in task_queues"),
        (NotFound("task", "id1", "is no dead letter: look"), "task 'id1' is no dead letter: look"),
    ],
)
def test_an_error_says_the_next_step(error, step):
    assert step in str(error)


def test_an_error_is_caught_as_what_python_would_raise():
    assert issubclass(SettingsError, ValueError)
    assert issubclass(NotWired, RuntimeError)
    assert issubclass(TaskDeclarationError, TypeError)
    assert issubclass(TenantInvalid, TypeError)
    assert issubclass(TenantMissing, ValueError)
    assert issubclass(PolicyInvalid, ValueError)
    assert issubclass(KeyMissing, ValueError)
    assert issubclass(KeyInvalid, TypeError)
    assert issubclass(HeaderInvalid, ValueError)
    assert issubclass(LimiterUnavailable, ConnectionError)


def test_a_long_value_is_cut_in_a_message():
    assert got("x" * 78) == repr("x" * 78)
    assert got("x" * 79) == "'" + "x" * 78 + "…"
    assert len(got(list(range(10_000)))) == 80


def test_a_value_that_python_does_not_write_is_named_by_its_type():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert got(10**5000) == "int that is too long to show"
    assert got({"limit": 10**5000}) == "dict that is too long to show"
    assert got(deep) == "list that is too long to show"


def test_a_name_is_suggested_where_one_is_near():
    assert suggestion("wiat", ("wait", "drop")) == ", did you mean 'wait'?"
    assert suggestion("anything", ("wait", "drop")) == ""
