"""Every script of the dispatch path says in its header what it does, and the table of keys knows
what it writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_fairness.store
from celery_fairness.decision import Parking
from celery_fairness.scheduling.words import Put, Said, Settle, Settled, Verdict, Waiting
from celery_fairness.store import verbs
from celery_fairness.store.scripts import load_script, script_names
from tests.lua.dispatch_header import include_problems, problems_of
from tests.lua.script_header import split
from tests.lua.test_headers import DISPATCH_README, README, ROW, sent  # noqa: F401 - a fixture

FOLDER = Path(celery_fairness.store.__file__).parent / "lua" / "dispatch"
VERBS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.lua"))}
INCLUDES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("includes/*.lua"))}
HEADERS = {name: split(text)[0] for name, text in VERBS.items()}

DISPATCH_KEYS = {name: (type_, by) for name, type_, by in ROW.findall(DISPATCH_README)}
TYPES = {name.partition(":")[0]: type_ for name, (type_, _) in {**README, **DISPATCH_KEYS}.items()}


def test_every_verb_that_can_be_loaded_is_looked_at():
    assert list(VERBS) == script_names("dispatch")
    names = {path.name for path in FOLDER.rglob("*") if path.is_file()}
    assert names == {f"{name}.lua" for name in [*VERBS, *INCLUDES]}


@pytest.mark.parametrize("name", VERBS)
def test_a_script_does_what_its_header_says(name):
    assert problems_of(name, VERBS[name], TYPES) == []


@pytest.mark.parametrize("name", INCLUDES)
def test_a_piece_has_a_header_and_no_side_effect(name):
    assert include_problems(name, INCLUDES[name], TYPES) == []


def test_every_piece_is_used_and_every_function_too():
    everything = "".join([*VERBS.values(), *INCLUDES.values()])
    for name, text in INCLUDES.items():
        assert re.search(rf'--- @(include|later \w+) "{name}"', everything)
        for function in re.findall(r"local function (\w+)", text):
            assert len(re.findall(rf"\b{function}\(", everything)) > 1, function


@pytest.mark.parametrize("name", VERBS)
def test_a_function_is_there_before_it_is_called(name):
    source = re.sub(
        r"--[^\n]*",
        "",
        re.sub(r"--\[\[.*?\]\]", "", load_script(f"dispatch/{name}").source, flags=re.DOTALL),
    )
    for function in re.findall(r"local function (\w+)", source):
        # What is made later is called as ``limited().function(...)``.
        first = re.search(rf"(?<!\.)\b{function}\(", source).start()
        assert source[:first].endswith("local function "), function


def test_the_codes_are_those_that_python_reads():
    headers = HEADERS | {name: split(text)[0] for name, text in INCLUDES.items()}
    codes = {name: header.codes for name, header in headers.items() if header.codes}
    assert codes == {
        "put": {each.value: each.name for each in Put},
        "again": {each.value: each.name for each in Settled},
        "override": {each.value: each.name for each in Said},
        "park_message": {each.value: each.name for each in Parking},
        "unused": {verbs.ENDS_FIRST: "ENDS_FIRST"},
    }


def test_the_verdicts_are_those_that_the_script_knows():
    described = VERBS["settle"].partition("]]")[0]
    for verdict in Verdict:
        assert f" {verdict.value} " in described
    compared = set(re.findall(r'verdict [=~]= "(\w+)"', INCLUDES["ends"] + INCLUDES["again"]))
    assert compared == {each.value for each in Verdict} - {"head"}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("put", verbs.put_args(Waiting("q", "t"), bound=["b"])),
        ("claim", verbs.claim_args("w", 1, 2, ["q", "p"], verbs.Rules())),
        ("settle", verbs.settle_args([Settle("t.1", Verdict.DONE, "k 0 q")], verbs.Rules())),
        ("renew", verbs.renew_args([("t.1", "k")], 1)),
        ("mourn", verbs.mourn_args("", verbs.Rules())),
    ],
)
def test_python_sends_what_the_header_lists_in_its_order(name, args):
    entries = HEADERS[name].of("ARGV")
    assert len(args) >= len(entries)
    for entry, value in zip(entries, args, strict=False):
        if entry.type == "int":
            float(value)
        if entry.name == "frozen_ms":
            assert value == ""


@pytest.mark.parametrize(
    "name", ["admit", "forget", "free", "park_message", "promote", "put_off", "unpark"]
)
def test_the_limiter_sends_what_the_header_lists_in_its_order(sent, name):  # noqa: F811 - it is asked for
    keys, args = sent[f"dispatch/{name}"]
    assert keys == ["{fairness}:"]
    entries = HEADERS[name].of("ARGV")
    told = dict(zip((entry.name for entry in entries), args, strict=not entries[-1].rest))
    expected = {
        "lease": "l1",
        "enforcement": "on",
        "key": "tenant:42",
        "tenant_key": "tenant:42",
        "tier": "pro",
        "concurrency": "3",
        "default_tier": "free",
        "default_limit": "1",
        "words": "api|1|||w",
        "message": "m1",
        "serial": "s1",
        "next_serial": "s2",
        "job": '["t1", "shop.pay", "q"]',
        "frozen_ms": "",
        "lease_ms": 15_000,
        "keep_ms": 1_200_000,
        "snooze_ms": 30_000,
        "tier_waits": "",
        "tag": "m1",
        "expires_ms": "7",
        "want": 16,
        "broker": "here",
        "is_new": "1",
        "how": "published",
        "tags": "m1",
        "what": "leases",
        "pairs": "l1",
    }
    assert told == {each: expected[each] for each in told}


def test_who_deletes_a_key_is_a_verb_or_time():
    assert not set(DISPATCH_KEYS) & set(README)
    for key, (_, by) in DISPATCH_KEYS.items():
        assert {each.strip() for each in by.split(",")} <= {*VERBS, "expiry", "nobody"}, key


PLANTED = [
    ("put", "ARGV[9], ARGV[10]", "ARGV[9], ARGV[11]", "ARGV: documented"),
    ("put", "ARGV[3], ARGV[4], ARGV[5]", "ARGV[4], ARGV[3], ARGV[5]", "ARGV[3] is 'tenant'"),
    ("put", "tonumber(ARGV[7])", "ARGV[7]", "is an int"),
    ("put", "return 2", "return 3", "codes: documented"),
    ("put", '"SADD", prefix .. "known"', '"SADD", prefix .. "knwon"', "not in the table"),
    ("put", '"SADD", prefix .. "known"', '"HSET", prefix .. "known"', "no hash in the table"),
    ("put", '"SADD", prefix .. "known"', '"SADD", "known"', "a key of a known family"),
    ("put", "put: a task", "push: a task", "expected a header that begins with 'put: '"),
    (
        "claim",
        "#turns.queues do\n  local queue",
        "last do\n  local queue",
        "a loop's end has no bound",
    ),
    ("mourn", ', "LIMIT", 0, 1)', ")", "reads without a bound"),
    ("unused", "unused, 0, 0", "unused, 0, -1", "reads without a bound"),
    ("settle", "for index = 7, #ARGV", "for index = 8, #ARGV", "used from [8]"),
    ("size", "KEYS[1] prefix str", "KEYS[1] prefix hash", "the prefix alone"),
]


@pytest.mark.parametrize(("name", "right", "wrong", "problem"), PLANTED)
def test_a_planted_mistake_is_found(name, right, wrong, problem):
    assert right in VERBS[name], "the planted mistake needs a new place"
    found = problems_of(name, VERBS[name].replace(right, wrong), TYPES)
    assert any(problem in each for each in found), found
