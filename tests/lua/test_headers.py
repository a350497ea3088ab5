"""Every script says in its header what it does: keys, arguments, answer; and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import celery_fairness.store
from celery_fairness.decision import Copy, Job, Lease, SlotRequest
from celery_fairness.limiter import redis as redis_limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.settings import build_settings
from celery_fairness.store.names import Names
from celery_fairness.store.scripts import script_names
from celery_fairness.tiers import Tier
from tests.lua.script_header import include_problems, problems_of, split

FOLDER = Path(celery_fairness.store.__file__).parent / "lua"
VERBS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.lua"))}
INCLUDES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("includes/*.lua"))}
HEADERS = {name: split(text)[0] for name, text in VERBS.items()}


def test_every_verb_that_can_be_loaded_is_looked_at():
    assert list(VERBS) == script_names()
    others = {
        path.name for path in FOLDER.rglob("*") if path.is_file() and "dispatch" not in path.parts
    }
    assert others == {f"{name}.lua" for name in [*VERBS, *INCLUDES]} | {"README.md"}


@pytest.mark.parametrize("name", VERBS)
def test_a_script_does_what_its_header_says(name):
    assert problems_of(name, VERBS[name], INCLUDES) == []


@pytest.mark.parametrize("name", INCLUDES)
def test_a_piece_has_a_header_and_no_side_effect(name):
    assert include_problems(name, INCLUDES[name], INCLUDES) == []


def test_every_piece_is_used_and_every_function_too():
    everything = "".join([*VERBS.values(), *INCLUDES.values()])
    for name, text in INCLUDES.items():
        assert f'--- @include "{name}"' in everything
        for function in re.findall(r"local function (\w+)", text):
            assert len(re.findall(rf"\b{function}\(", everything)) > 1, function


PLANTED = [
    (
        "acquire",
        "message, serial, next_serial = ARGV[8]",
        "message, serial, next_serial = ARGV[7]",
        "ARGV: documented",
    ),
    ("acquire", "ARGV[8], ARGV[9], ARGV[10]", "ARGV[8], ARGV[9], ARGV[13]", "ARGV: documented"),
    (
        "acquire",
        "clock, leases, tiers, tenant = KEYS[1], KEYS[2]",
        "clock, leases, tiers, tenant = KEYS[2], KEYS[1]",
        "KEYS[1] is documented as 'clock', and called 'leases'",
    ),
    (
        "acquire",
        "tenant, ARGV[4], ARGV[5]",
        "tenant, ARGV[5], ARGV[4]",
        "ARGV[4] is documented as 'tier', and called 'concurrency'",
    ),
    (
        "acquire",
        "  KEYS[6] counts       hash    counters, among them refused:{tier}\n",
        "",
        "KEYS: expected 1, 2, 3",
    ),
    (
        "acquire",
        "KEYS[2] leases       zset",
        "KEYS[2] leases       hash",
        "ZSCORE leases: it is documented as a hash",
    ),
    ("acquire", "tonumber(ARGV[2])", "ARGV[2]", "is an int: expected tonumber"),
    ("acquire", "return {-2, held", "return {-3, held", "codes: documented"),
    ("acquire", "and 2 or 1", "and 3 or 1", "codes: documented"),
    ("acquire", "-1 PAUSED   ", "", "codes: documented"),
    (
        "acquire",
        "return {code, held + 1, limit, -1, version, tier}",
        "return {code, held + 1, limit, version, tier}",
        "answer: documented 6 parts",
    ),
    ("acquire", ', "LIMIT", 0, CLEAR_AT_MOST)', ")", "reads without a bound"),
    ("acquire", "acquire: take", "aquire: take", "expected a header that begins with 'acquire: '"),
    (
        "acquire",
        '--- @include "tick"',
        '--- @include "tock"',
        "includes 'tock', which is not there",
    ),
    (
        "release",
        "for position = 1, #KEYS do",
        "for position = 2, #KEYS do",
        "KEYS: documented [1] and what follows, used from [2]",
    ),
    (
        "release",
        "ARGV[position]",
        "ARGV[position + 1]",
        "ARGV: documented [1] and what follows, used from [2]",
    ),
    ("release", "  Returns how many were held.\n", "", "expected a line 'Returns ...'"),
    (
        "release",
        "return released",
        'redis.call("SCAN", 0)\nreturn released',
        "SCAN walks without a bound",
    ),
    (
        "renew",
        "ARGV[position + 3]",
        "ARGV[position + 2]",
        "ARGV: documented [4] and what follows, used from [3]",
    ),
    (
        "renew",
        "KEYS[position + 1]",
        "KEYS[position]",
        "KEYS: documented [2] and what follows, used from [1]",
    ),
    (
        "renew",
        "for position = 1, #KEYS - 1 do",
        "for position = 1, released do",
        "a loop's end has no bound",
    ),
    ("renew", "for position = 1, #KEYS - 1 do", "while true do", "a loop without a bound"),
    (
        "publish_tiers",
        "for row = 3, #ARGV, 2 do",
        "for row = 4, #ARGV, 2 do",
        "ARGV: documented [3] and what follows, used from [4]",
    ),
    ("publish_tiers", "return {0, tonumber", "return {2, tonumber", "codes: documented"),
    ("publish_tiers", '"HGETALL", tiers', '"HGETALL", news', "reads without a bound"),
    ("supersede", "return 1\n", "return 2\n", "codes: documented"),
    ("supersede", "redis.call(", "redis.pcall(", "an error that is swallowed"),
    ("inspect", "redis.call(", "server.call(", "server.call is not known to Redis"),
    (
        "publish_tenant",
        "local tenant, news = KEYS[1], KEYS[2]\n",
        "",
        "KEYS: documented [1, 2], used []",
    ),
]


@pytest.mark.parametrize(("name", "right", "wrong", "problem"), PLANTED)
def test_a_planted_mistake_is_found(name, right, wrong, problem):
    assert right in VERBS[name], "the planted mistake needs a new place"
    found = problems_of(name, VERBS[name].replace(right, wrong), INCLUDES)
    assert any(problem in each for each in found), found


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("clock", lambda text: text.partition("]]\n")[2], "expected a header comment"),
        ("clock", lambda text: text + "local x = KEYS[1]\n", "KEYS or ARGV in an included"),
        ("clock", lambda text: text + 'redis.call("DEL", clock_key)\n', "expected only local"),
        ("copies", lambda text: text.replace('"HMGET", copy', '"HMGET", other'), "documented key"),
        ("copies", lambda text: text + "-- more\n" * 150, "expected at most 150 lines"),
        ("tick", lambda text: text.rstrip(), "a newline at the end"),
    ],
)
def test_a_planted_mistake_in_a_piece_is_found(name, change, problem):
    found = include_problems(name, change(INCLUDES[name]), INCLUDES)
    assert any(problem in each for each in found), found


def test_the_codes_are_those_that_python_reads():
    refusals = {code: reason.name for code, reason in redis_limiter._REFUSALS.items()}
    admissions = {1: "ADMITTED", 2: "ADMITTED_OVER_LIMIT"}
    steered = {redis_limiter._STEERED: "STEERED"}
    assert HEADERS["acquire"].codes == {**refusals, **admissions, **steered}
    # Where there are two, Python reads 1 as true.
    for name in ("publish_tiers", "supersede"):
        assert set(HEADERS[name].codes) == {0, 1}
    assert {n for n, h in HEADERS.items() if h.codes} == {"acquire", "publish_tiers", "supersede"}


class Recording:
    """In the place of a connection: keeps what is sent."""

    ANSWERS = {
        "acquire": [1, 1, 1, -1, 0, "free"],
        "renew": ["1"],
        "release": 1,
        "supersede": 1,
        "inspect": [0, 1, "free"],
        "publish_tiers": [1, 1],
        "publish_tenant": 1,
        "dispatch/admit": [1, 1, 1, -1, 0, "free", "", "w"],
        "dispatch/forget": None,
        "dispatch/free": 1,
        "dispatch/park_message": 1,
        "dispatch/promote": [-1],
        "dispatch/put_off": 1,
        "dispatch/unpark": 1,
    }

    def __init__(self):
        self.sent = {}

    def run(self, verb, keys, args):
        self.sent[verb] = (list(keys), list(args))
        return self.ANSWERS[verb]


@pytest.fixture(scope="module")
def sent():
    connection = Recording()
    limiter = RedisLimiter(connection, build_settings({}), broker="here")
    lease, copy = Lease("l1", "tenant:42"), Copy("m1", "s1")
    limiter.acquire(SlotRequest(lease, "42", "pro", copy, "s2"))
    both = Lease("l1", "tenant:42,api")
    limiter.acquire(
        SlotRequest(both, "42", "pro", copy, "s2", "api|1|||w", Job("t1", "shop.pay", "q"))
    )
    limiter.park(SlotRequest(both, "42", "pro", copy, "s2", "api|1|||w"), "m1", 7)
    limiter.promote(16, "s2")
    limiter.put_off("m1")
    limiter.unpark(["m1"])
    limiter.release([both])
    limiter.renew([lease, lease], 5)
    limiter.release([lease, lease])
    limiter.supersede(copy, "s2")
    limiter.inspect("tenant:42", "42", "pro")
    limiter.publish_tiers([Tier("free", 1), Tier("pro", 3)], "database")
    limiter.publish_tenant("42", "pro", 7)
    return connection.sent


@pytest.mark.parametrize("name", VERBS)
def test_python_sends_what_the_header_lists_in_its_order(sent, name):
    names = Names("fairness")
    spelled = {
        "clock": names.clock,
        "tiers": names.tiers,
        "news": names.news,
        "counts": names.counts,
        "leases": names.leases("tenant:42"),
        "tenant": names.tenant("42"),
        "copy": names.copy("m1"),
        "events": names.events,
        "exceeded": names.exceeded,
        "minute": names.minute(""),
        "ends": names.ends,
    }
    header = HEADERS[name]
    for array, values in zip(("KEYS", "ARGV"), sent[name], strict=True):
        entries = header.of(array)
        several = bool(entries and entries[-1].rest)
        assert len(values) >= len(entries) if several else len(values) == len(entries)
        for position, value in enumerate(values):
            entry = entries[min(position, len(entries) - 1)]
            if array == "KEYS":
                assert value == spelled[entry.name]
            elif entry.type == "int":
                assert isinstance(value, int), entry


ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| .* \| ([^|]+) \|$", re.MULTILINE)
#: The table of the limiter's keys, and that of the dispatch path.
LIMITER_README, _, DISPATCH_README = (FOLDER / "README.md").read_text().partition("\n## ")
README = {name: (type_, by) for name, type_, by in ROW.findall(LIMITER_README)}


def test_the_key_table_and_the_module_that_spells_keys_are_one():
    names = Names("NAMESPACE")
    spelled = {value for name, value in vars(names).items() if not name.startswith("_")}
    for name, method in inspect.getmembers(names, inspect.ismethod):
        if not name.startswith("_"):
            (parameter,) = inspect.signature(method).parameters
            spelled.add(method(parameter.upper()))
    prefix = "{NAMESPACE}:"
    assert all(each.startswith(prefix) for each in spelled)
    assert {each.removeprefix(prefix) for each in spelled} == set(README)


@pytest.mark.parametrize("name", VERBS)
def test_the_key_table_and_the_headers_agree_on_types(name):
    types = {key.partition(":")[0]: type_ for key, (type_, _) in README.items()}
    for entry in HEADERS[name].of("KEYS"):
        assert types[entry.name] == entry.type


def test_who_deletes_a_key_is_a_verb_or_time():
    for key, (_, by) in README.items():
        for each in re.sub(r"\([^)]*\)", "", by).split(","):
            assert each.strip() in {*VERBS, "expiry", "nobody"}, key
