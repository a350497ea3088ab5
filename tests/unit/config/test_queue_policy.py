"""What the settings say of queues, and in which partition a task is."""

from __future__ import annotations

import uuid
from base64 import b64encode

import pytest
from celery import Celery

from celery_fairness import Fairness
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import QueueRow, read_row, write_queue
from celery_fairness.config.queue_policy import (
    PartitionNumbers,
    QueuePolicy,
    partition_key,
    queue_key,
)
from celery_fairness.config.rates import Rate
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import KEY_PATTERN, key_hash
from celery_fairness.errors import HeaderInvalid, KeyMissing, SettingsError, got
from celery_fairness.message.headers import parse_header
from celery_fairness.message.partition import partition_of, queue_limits_text, unnamed_partition
from celery_fairness.message.stamp import Message
from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed
from celery_fairness.transport.envelope import waiting_of
from tests.support.numbers import listed
from tests.support.parts import parts_of

HOSTILE = ["a b", "x\ny", "a,b|c", "ü", "h_1", "a:b", "x" * 300, "{}", "\0", " "]


def body(customer_id, amount=1, *, region=None, **more):
    """A task's function."""


def test_every_field_of_a_queue_is_read():
    said = {
        "global_limit": 5,
        "local_limit": 2,
        "rate": "100/PT1M",
        "throttle": {"limit": 1, "period": "PT1S"},
        "on_limit": "drop",
        "by_args": ["customer_id"],
        "by_kind": True,
        "partition": {"concurrency": 1, "local_limit": 1, "rate": "9/m", "throttle": "1/s"},
        "missing": "error",
        "max_waiting": 9,
    }
    policy = build_settings({"queues": {"jobs": said}}).queues["jobs"]
    assert policy == QueuePolicy(
        global_limit=5,
        local_limit=2,
        rate=Rate(100, 60),
        throttle=Rate(1, 1),
        on_limit="drop",
        by_args=("customer_id",),
        by_kind=True,
        partition=PartitionNumbers(
            concurrency=1, local_limit=1, rate=Rate(9, 60), throttle=Rate(1, 1)
        ),
        missing="error",
        max_waiting=9,
    )
    assert policy.limit == Limit(
        "",
        concurrency=5,
        rate=((100, 60_000),),
        throttle=((1, 1_000),),
        on_limit="drop",
        local_limit=2,
    )
    assert policy.part_limit == Limit(
        "",
        concurrency=1,
        rate=((9, 60_000),),
        throttle=((1, 1_000),),
        on_limit="drop",
        local_limit=1,
    )
    assert build_settings({"queues": {"jobs": policy}}).queues["jobs"] == policy


def test_partitions_without_numbers_have_an_empty_limit_and_a_queue_without_them_none():
    assert QueuePolicy(by_kind=True, on_limit="drop").part_limit == Limit("", on_limit="drop")
    assert QueuePolicy(global_limit=1).part_limit is None


NUMBER = "expected a whole number from 0 (pause) to 1000000, or None (unlimited), got: "
ARGUMENTS = (
    "by_args: expected a list of at most 16 names of arguments (an empty one is all arguments), "
    "or None, got: "
)
STARTS = (
    "rate.limit: expected a whole number from 1 to 1000000000 (to pause a queue, set its "
    "global_limit to 0), got: "
)
PERIOD = (
    "rate.period: expected 1 ms to 366 days, such as PT1M, 1m30s or 60 (no months or years), got: "
)
SPACING = (
    "throttle: expected 'LIMIT/PERIOD' such as '100/m' or '100/PT1M', a mapping of limit and "
    "period, or a Rate, got: "
)
WAITING = "expected a whole number from 1 to 1000000000, or None (any number), got: "
FIELDS = (
    f"expected one of {listed('queue')}, partition, on_limit, by_args, by_kind, missing, "
    "max_waiting, got: "
)
IN_PARTITION = "rate.limit: expected a whole number from 1 to 1000000000 (to pause a partition, "


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (5, "expected a mapping of fields, got: 5"),
        ({"global_limit": -1}, f"global_limit: {NUMBER}-1"),
        ({"global_limit": 1_000_001}, f"global_limit: {NUMBER}1000001"),
        ({"global_limit": True}, f"global_limit: {NUMBER}True"),
        ({"local_limit": "5"}, f"local_limit: {NUMBER}'5'"),
        ({"rate": "0/PT1M"}, f"{STARTS}0"),
        ({"rate": {"limit": 5, "period": "P1M"}}, f"{PERIOD}'P1M'"),
        ({"throttle": 5}, f"{SPACING}5"),
        (
            {"on_limit": "wiat"},
            "on_limit: expected 'wait', 'reschedule' or 'drop', got: 'wiat', did you mean 'wait'?",
        ),
        ({"by_args": "customer_id"}, f"{ARGUMENTS}'customer_id'"),
        ({"by_args": ["a.b"]}, f"{ARGUMENTS}['a.b']"),
        ({"by_args": ["a"] * 17}, ARGUMENTS + "['a'" + ", 'a'" * 15 + "…"),
        ({"by_kind": 1}, "by_kind: expected true or false, got: 1"),
        (
            {"by_kind": True, "partition": {"concurrency": -1}},
            f"partition: concurrency: {NUMBER}-1",
        ),
        (
            {"by_kind": True, "partition": {"rate": "0/m"}},
            f"partition: {IN_PARTITION}set its concurrency to 0), got: 0",
        ),
        (
            {"by_kind": True, "partition": {"global_limit": 1}},
            (
                f"partition: expected one of {listed('partition')}, got: 'global_limit', "
                "did you mean 'concurrency'?"
            ),
        ),
        ({"concurrency": 1}, f"{FIELDS}'concurrency', did you mean 'global_limit'?"),
        (
            {"partition": {"concurrency": 1}},
            "partition: expected by_args or by_kind beside it, got: neither",
        ),
        ({"missing": "none"}, "missing: expected 'empty' or 'error', got: 'none'"),
        ({"globl_limit": 1}, f"{FIELDS}'globl_limit', did you mean 'global_limit'?"),
    ],
)
def test_what_cannot_be_meant_is_an_error_that_names_the_queue(said, problem):
    with pytest.raises(SettingsError) as caught:
        build_settings({"queues": {"jobs": said}})
    assert str(caught.value) == f"fairness.queues: jobs: {problem}"


@pytest.mark.parametrize("limit", [0, 1_000_000, None])
def test_both_ends_of_a_limit_can_be_meant(limit):
    queues = build_settings({"queues": {"q": {"global_limit": limit, "local_limit": limit}}}).queues
    assert (queues["q"].global_limit, queues["q"].local_limit) == (limit, limit)


def test_all_that_is_wrong_with_a_queue_is_told_at_once():
    with pytest.raises(SettingsError) as caught:
        build_settings({"queues": {"jobs": {"global_limit": -1, "by_kind": 0, "max_waiting": 0}}})
    assert str(caught.value).split("; ") == [
        f"fairness.queues: jobs: global_limit: {NUMBER}-1",
        "fairness.queues: jobs: by_kind: expected true or false, got: 0",
        f"fairness.queues: jobs: max_waiting: {WAITING}0",
    ]


def test_numbers_and_rows_are_read_as_they_are_written():
    numbers = Limit(
        "",
        concurrency=5,
        rate=((2, 700), (3, 9_000)),
        throttle=((1, 1_000),),
        on_limit="reschedule",
        local_limit=0,
    )
    for each in (numbers, Limit(""), Limit("", local_limit=3)):
        text = write_queue(each)
        row = QueueRow("queue:q", declared=each, part_by_operator=each)
        assert read_row(f"queue:q 7 {text}   {text}") == row
        row = QueueRow("queue:q", declared_part=each, by_operator=each)
        assert read_row(f"queue:q 0  {text} {text} ") == row
    assert read_row("queue:q 0    ") == QueueRow("queue:q")


def test_of_a_row_the_limits_count_that_an_operator_has_set():
    one, two = Limit("", concurrency=1), Limit("", concurrency=2)
    row = QueueRow("queue:q", one, one, None, two)
    assert (row.limit, row.part_limit) == (one, two)
    assert QueueRow("queue:q", one, None, two, two).part_limit is None
    assert QueueRow("queue:q").limit == Limit("")


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_queue_of_any_name_has_a_key_of_its_own(name):
    key = queue_key(name)
    assert KEY_PATTERN.fullmatch(key)
    assert key.count(":") == 1
    assert key == f"queue:{key_hash(name)}"


def test_values_that_differ_are_partitions_that_differ():
    values = [*HOSTILE, "1", None, True, False, 1.0, [1], {"a": 1}, ("1", "2"), uuid.UUID(int=5)]
    keys = {partition_key("q", [value]) for value in values}
    assert len(keys) == len(values)
    pairs = [("a", "b:c"), ("a:b", "c"), ("a", None), (None, "a"), ("a", "b")]
    assert len({partition_key("q", pair) for pair in pairs}) == len(pairs)
    for key in keys:
        assert KEY_PATTERN.fullmatch(key)
        assert len(key) <= 255
        assert key.startswith("queue:q:")
    assert partition_key("q", [1]) == partition_key("q", ["1"]) == "queue:q:1"


def test_many_long_values_make_no_long_key():
    key = partition_key("q" * 120, ["x" * 100] * 5)
    assert len(key) <= 255
    assert key != partition_key("q" * 120, ["x" * 100] * 4)


@pytest.mark.parametrize(
    ("fields", "args", "kwargs", "key"),
    [
        ({"by_args": ("customer_id",)}, (7,), {}, "queue:q:7"),
        ({"by_args": ("customer_id",)}, (), {"customer_id": 7}, "queue:q:7"),
        ({"by_args": ("amount", "region")}, (7,), {"region": "eu"}, "queue:q:1:eu"),
        ({"by_args": ("customer_id",)}, (), {}, "queue:q:"),
        ({"by_args": ("customer_id",)}, ("",), {}, "queue:q:"),
        ({"by_args": ("unknown",)}, (7,), {"unknown": 3}, "queue:q:3"),
        ({"by_kind": True}, (7,), {}, "queue:q:shop.pay"),
        ({"by_args": ("customer_id",), "by_kind": True}, (7,), {}, "queue:q:7:shop.pay"),
    ],
)
def test_a_partition_is_taken_from_arguments_by_name(fields, args, kwargs, key):
    assert partition_of(QueuePolicy(**fields), "q", "shop.pay", body, args, kwargs) == key


def test_without_the_task_only_keywords_are_known():
    policy = QueuePolicy(by_args=("customer_id",))
    assert partition_of(policy, "q", "shop.pay", None, (7,), {}) == "queue:q:"
    assert partition_of(policy, "q", "shop.pay", None, (), {"customer_id": 7}) == "queue:q:7"


def test_no_names_are_all_arguments():
    policy = QueuePolicy(by_args=())
    keys = [
        partition_of(policy, "q", "t", body, args, kwargs)
        for args, kwargs in [((7,), {}), ((), {"customer_id": 7}), ((7, 1), {}), ((7, 2), {})]
    ]
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


def test_a_missing_value_may_be_an_error():
    policy = QueuePolicy(by_args=("customer_id",), missing="error")
    with pytest.raises(KeyMissing) as caught:
        partition_of(policy, "q", "shop.pay", body, (), {})
    assert str(caught.value) == (
        "task shop.pay: key 'queue:q': {args.customer_id} has no value: send the task with one, or "
        "declare the limit with missing='empty', which counts such tasks together"
    )


def test_who_names_no_partition_is_in_that_of_no_values():
    policy = QueuePolicy(by_args=("a", "b"))
    assert unnamed_partition("q") == partition_of(policy, "q", "shop.t", None, (), {}) == "queue:q:"
    assert queue_limits_text("q", None) == "queue:q|q|w"
    assert queue_limits_text("q", "queue:q:1") == "queue:q:1|q|w,queue:q|q|w"


# -- the header and the message -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"queue": "q"},
        {"queue": "q", "key": "queue:other:1"},
        {"queue": "q", "key": "queue:q"},
        {"queue": "q", "key": "queue:q:a b"},
        {"queue": "q", "key": "queue:q:1|C0|d,x"},
        {"queue": "q", "key": "queue:q:" + "x" * 255},
        {"queue": "\ud800", "key": "queue:q:1"},
    ],
)
def test_a_partition_that_cannot_be_meant_is_an_error(value):
    with pytest.raises(HeaderInvalid) as caught:
        parse_header({"v": 1, "partition": value})
    expected = "partition: expected a queue and a key queue:QUEUE:PARTITION of it"
    assert str(caught.value) == f"header 'fairness': {expected}, got: {got(value)}"


BY_CUSTOMER = QueuePolicy(by_args=("customer_id",))
BY_BOTH = QueuePolicy(by_args=("customer_id",), by_kind=True)


def limits_of(queue, header, policy=BY_CUSTOMER, body="", encoding="base64"):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    headers = {"task": "shop.pay", "fairness": header} if header else {"task": "shop.pay"}
    message = {"headers": headers, "properties": {**properties, "body_encoding": encoding}}
    message["body"] = b64encode(body.encode()).decode() if encoding == "base64" else body
    settings = build_settings({"queues": {"q": policy} if policy else {}})
    return waiting_of(queue, message, settings).limits


def test_a_message_names_its_partition_for_its_own_queue_alone():
    header = {"v": 1, "partition": {"queue": "q", "key": "queue:q:7"}}
    assert limits_of("q", header) == limits_of("q", header, None) == "queue:q:7|q|w"
    assert limits_of("q", None) == "queue:q:|q|w"
    assert limits_of("other", header) == ""
    other = {"v": 1, "partition": {"queue": "other", "key": "queue:other:7"}}
    assert limits_of("q", other) == "queue:q:|q|w"
    with_policy = {**header, "limits": [{"key": "api", "concurrency": 1}]}
    assert limits_of("q", with_policy) == "api|C1|w,queue:q:7|q|w"


@pytest.mark.parametrize(
    ("policy", "body", "part"),
    [
        (BY_CUSTOMER, '[[], {"customer_id": 7}, {}]', "7"),
        (QueuePolicy(by_kind=True), "", "shop.pay"),
        (BY_BOTH, '[[], {"customer_id": 7}, {}]', "7:shop.pay"),
        (QueuePolicy(by_args=("customer_id",), missing="error"), "[[], {}, {}]", None),
        # Without the task's signature nobody knows which argument it is.
        (BY_CUSTOMER, "[[7], {}, {}]", ""),
        (BY_CUSTOMER, '[7, {"customer_id": 7}, {}]', ""),
        (BY_CUSTOMER, '{"customer_id": 7}', ""),
        (BY_CUSTOMER, "not JSON", ""),
        (BY_CUSTOMER, "[" * 100_000, ""),
        (BY_CUSTOMER, "null", ""),
    ],
)
@pytest.mark.parametrize("encoding", ["base64", None])
def test_of_a_message_that_does_not_say_its_partition_it_is_read(policy, body, part, encoding):
    expected = "" if part is None else f"queue:q:{part}|q|w"
    assert limits_of("q", None, policy, body, encoding) == expected


@pytest.mark.parametrize(
    "wrong", [{"cost": -1}, {"v": 2}, {"limits": 5}, {"tenant": 1.5}, {"tier": 7}]
)
def test_a_field_that_is_wrong_elsewhere_leaves_the_task_in_its_partition(wrong):
    header = {"v": 1, "partition": {"queue": "q", "key": "queue:q:7"}, **wrong}
    assert limits_of("q", header) == "queue:q:7|q|w"
    assert limits_of("q", {**header, "partition": 5}) == "queue:q:|q|w"
    assert limits_of("q", "a text") == "queue:q:|q|w"


def test_what_is_published_names_its_partition():
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        app.conf.fairness = {
            "redis_url": "redis://localhost:1",
            "queues": {"pay": {"global_limit": 1, "by_args": ["customer_id"]}},
        }
        app.conf.task_default_queue = "other"
        fairness = Fairness(app, {})

        @app.task(name="shop.pay")
        def pay(customer_id):
            pass

        def header(queue, args, name="shop.pay", parent=None):
            return parts_of(fairness).stamp.of_message(
                Message(name, pay, {}, args, {}, parent), queue, None
            )

        assert header("pay", (7,))["partition"] == {"queue": "pay", "key": "queue:pay:7"}
        assert header("pay", ())["partition"]["key"] == "queue:pay:"
        assert header("other", (7,)) is None
        assert header("pay", (7,), name="celery.chord_unlock") is None
        fairness.close()


def test_a_book_counts_the_slots_of_queues_that_are_held():
    lease_table = LeaseTable()
    for number, key in enumerate(["tenant:a,queue:q", "_system,api,queue:q:1,queue:q", "tenant:b"]):
        lease_table.hold(Claimed(f"t{number}.1", "q", 1, key, 0, ""), 1)
    assert lease_table.slots_by_queue_key() == {"queue:q": 2, "queue:q:1": 1}
