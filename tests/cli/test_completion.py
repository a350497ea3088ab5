"""What a shell completes, in the protocol of bash and zsh."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Installation

#: A name that would colour the terminal.
HOSTILE = "red\x1b[31m"
#: An address to which no packet finds its way.
SILENT = "fairredis://203.0.113.1:6379/0"


@pytest.fixture
def complete(redis_url, fork_server):
    """``complete("celery fairness li")``: the words that the shell offers for the last word."""

    def ask(line, shell="bash", url=f"fair{redis_url}", **environ):
        words = line.split(" ")
        environ = {
            **os.environ,
            "CELERY_BROKER_URL": url,
            "CELERY_RESULT_BACKEND": redis_url,
            "SHOP_FAIRNESS": '{"services": {"mailing": {}}}',
            "_CELERY_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environ,
        }
        # The name of the program is part of the variable's name.
        program = Path(sys.executable).with_name("celery")
        done = fork_server("prefork").run([str(program)], environ)
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        if shell == "zsh":
            return lines[1::3]
        return [each.removeprefix("plain,") for each in lines if each]

    return ask


APP = "celery -A tests.support.shop fairness"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (f"{APP} li", ["library", "limit"]),
        ("celery fairness queue ", ["limit", "list", "migrate", "show"]),
        (f"{APP} queue migrate mail --to ", ["redis", "fairredis"]),
        (f"{APP} limit cool-down api --f", ["--for"]),
        (f"{APP} queue limit mail --on-limit d", ["drop"]),
        (f"{APP} events --types task.started,fairness.pu", ["task.started,fairness.purged"]),
        (f"{APP} tenant tier 42 pro", ["pro", "pro_plus"]),
        (f"{APP} worker ", ["mailing"]),
    ],
)
def test_words_that_are_known_without_redis(complete, line, offered):
    assert complete(line, url=SILENT) == offered


def test_zsh_is_answered_in_its_own_form(complete):
    assert complete(f"{APP} li", "zsh", SILENT) == ["library", "limit"]


def test_queues_are_those_of_redis(client, complete):
    installation = Installation(client)
    for queue in ("mail", "mailing", "other", HOSTILE):
        installation.put("42", queue, queue=queue)
    line = "celery fairness queue show "
    app = {"CELERY_APP": "tests.support.shop"}
    assert complete(f"{line}mai", **app) == ["mail", "mailing"]
    assert {"mail", "mailing", "other"} <= set(complete(line, **app))
    assert HOSTILE not in complete(line, **app)
    assert complete(f"{APP} task dead --queue o") == ["other"]


def test_keys_and_tenants_are_those_of_redis_and_of_the_app(client, complete):
    installation = Installation(client)
    for tenant in ("acme", "acme2", "other"):
        installation.put(tenant, tenant, limits="api.example.com|C1|w")
    assert complete(f"{APP} tenant show acm") == ["acme", "acme2"]
    assert complete(f"{APP} tenant tier o") == ["other"]
    assert complete(f"{APP} limit show tenant:a") == ["tenant:acme", "tenant:acme2"]
    assert complete(f"{APP} limit pause a") == ["api.example.com"]


def test_a_redis_that_is_silent_offers_nothing_soon(complete):
    begun = time.monotonic()
    assert complete(f"{APP} queue show ", url=SILENT) == []
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("line", ["celery -A no.such.app fairness", "celery fairness"])
def test_an_app_that_cannot_be_used_offers_no_names_and_no_error(complete, line):
    assert complete(f"{line} queue show ") == []
    assert complete(f"{line} tenant tier 42 ") == []
