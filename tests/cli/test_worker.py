"""``celery fairness worker SERVICE``: what it starts, and what it rejects."""

from __future__ import annotations

import os
import sys

import click
import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_fairness.cli import worker as worker_command
from celery_fairness.cli import worker_group
from celery_fairness.cli.commands import fairness as group
from celery_fairness.cli.nouns import nouns
from celery_fairness.config.worker_shares import Shares
from tests.support.parts import parts_of

pytestmark = pytest.mark.redis

QUEUES = ("analysis_priority", "analysis_default", "analysis_scheduled")


@pytest.fixture
def start(make_fairness, redis_url, monkeypatch):
    """Call the command; what it would start is in ``started`` and ``commands``."""

    class Start:
        started = None
        commands = None

        def __call__(self, *options, stock=False, conf=None, environ=None, **fairness):
            of = make_fairness(redis_url if stock else "", conf=conf, fairness=fairness)
            monkeypatch.setattr(parts_of(of), "environ", environ or {})
            self.fairness = of
            words = ["worker", *options]
            monkeypatch.setattr(sys, "argv", ["celery", "-A", "shop", "-q", "fairness", *words])
            obj = CLIContext(app=parts_of(of).app, no_color=True, workdir=None, quiet=True)
            return CliRunner().invoke(group, words, obj=obj)

    made = Start()

    def invoke(context):
        made.started = context.params

    def run(commands):
        made.commands = commands
        return 7

    monkeypatch.setattr(worker_command.celery_worker, "invoke", invoke)
    monkeypatch.setattr(worker_group, "run", run)
    return made


def test_one_worker_obeys_the_shares_where_the_broker_claims_fairly(start):
    done = start("analysis", "-c", "10", "-P", "threads", "-l", "INFO")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        "celery fairness: analysis: 10 slots: analysis_priority 5, analysis_default 3, "
        "analysis_scheduled 2 (strict)\n"
    )
    assert parts_of(start.fairness).shares == Shares(
        10, dict(zip(QUEUES, (5, 3, 2), strict=True)), False
    )
    assert start.started["queues"] == list(QUEUES)
    assert start.started["concurrency"] == 10
    assert start.started["hostname"].startswith("analysis@")
    assert start.started["loglevel"] == 20


def test_its_name_may_be_given(start):
    start("analysis", "-c", "3", "-n", "mine@here")
    assert start.started["hostname"] == "mine@here"


def test_the_pool_is_the_sum_of_the_variables(start):
    variables = {
        f"ANALYSIS_QUEUE_{name}_WORKERS": "4" for name in ("PRIORITY", "DEFAULT", "SCHEDULED")
    }
    assert start("analysis", environ=variables).exit_code == 0
    assert start.started["concurrency"] == 12
    done = start("analysis", "-c", "14", environ=variables)
    assert "warning: service analysis: 2 of the pool's 14 slots" in done.stderr


def test_the_pool_is_what_the_app_says_or_as_many_as_a_scaler_may_make(start):
    start("analysis", conf={"worker_concurrency": 6})
    assert parts_of(start.fairness).shares.pool == start.started["concurrency"] == 6
    start("analysis", "--autoscale", "8,2", "-c", "5")
    assert parts_of(start.fairness).shares.pool == 8
    assert (start.started["autoscale"], start.started["concurrency"]) == ((8, 2), 5)
    start("analysis", "-P", "solo", "-c", "9", services={"analysis": {"shares": "borrow"}})
    assert parts_of(start.fairness).shares == Shares(
        1, dict(zip(QUEUES, (1, 0, 0), strict=True)), True
    )


def test_of_a_service_that_only_the_settings_know(start):
    assert start("reports", "-c", "4", services={"reports": {}}).exit_code == 0
    assert start.started["queues"][0] == "reports_priority"


def test_other_brokers_have_a_worker_for_each_queue(start):
    done = start("analysis", "-c", "4", "-l", "INFO", "--statedb=/tmp/%n.db", stock=True)
    assert done.exit_code == 7
    assert start.started is None
    assert list(start.commands) == list(QUEUES)
    assert start.commands["analysis_default"] == [
        *(sys.executable, "-m", "celery", "-A", "shop", "-q", "worker"),
        *("-c", "4", "-l", "INFO", "--statedb=/tmp/%n.db"),
        *("-Q", "analysis_default", "-n", "analysis_default@%h", "-c", "1"),
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["analyss"], "did you mean 'analysis'?"),
        (["analysis", "-Q", "a"], "-Q: the queues are those of the service analysis"),
        (["analysis", "-X", "a"], "-X: the queues are those of the service analysis"),
        (["analysis", "-c", "2"], "expected a pool with a slot for each queue"),
        (["analysis", "--no-such"], "No such option"),
        ([], "Missing argument 'SERVICE'"),
    ],
)
@pytest.mark.parametrize("stock", [False, True])
def test_what_cannot_be_meant_is_rejected(start, options, problem, stock):
    done = start(*options, stock=stock)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert start.started is start.commands is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--autoscale", "8,3"], "--autoscale: this broker needs a pool for each queue"),
        (["-B"], "--beat: "),
        (["-D"], "--detach: "),
        (["-n", "mine"], "--hostname: "),
        (["--pidfile", "/tmp/a"], "--pidfile: expected a path with %n"),
        (["--logfile", "/tmp/a"], "--logfile: expected a path with %n"),
    ],
)
def test_what_several_pools_cannot_have_is_rejected(start, options, problem):
    done = start("analysis", "-c", "8", *options, stock=True)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert start.commands is None


def test_pools_lend_no_places(start):
    done = start("analysis", "-c", "8", stock=True, services={"analysis": {"shares": "borrow"}})
    assert done.exit_code == 2
    assert "shares: expected 'strict': this broker needs a pool for each queue" in done.stderr


def test_an_app_without_fairness_is_told_so():
    from celery import Celery

    app = Celery("bare", set_as_current=False)
    obj = CLIContext(app=app, no_color=True, workdir=None, quiet=True)
    done = CliRunner().invoke(group, ["worker", "analysis"], obj=obj)
    assert done.exit_code == 2
    assert "add 'fairness = Fairness(app)'" in done.stderr


def test_the_first_exit_code_that_is_not_0_counts_and_the_others_end_too(capfdbinary):
    waits = "import signal\nwhile True: signal.pause()"
    ends = "import sys; print('a word'); print('b', end='', file=sys.stderr); sys.exit(3)"
    code = worker_group.run(
        {"one": [sys.executable, "-c", waits], "two": [sys.executable, "-c", ends]}
    )
    out, err = capfdbinary.readouterr()
    assert code == 3
    assert out == b"two: a word\n"
    assert b"two: b\n" in err
    assert b"two: ended with exit code 3: the other workers are stopped too" in err


def test_a_worker_that_a_signal_ended_counts_as_in_a_shell(capfdbinary):
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert worker_group.run({"one": [sys.executable, "-c", dies]}) == 137
    assert worker_group.run({"one": [sys.executable, "-c", ""]}) == 0


def test_signals_are_handed_on_and_the_handlers_of_before_come_back(capfdbinary):
    import signal

    before = signal.getsignal(signal.SIGUSR1)
    asks = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        f"os.kill({os.getpid()}, signal.SIGUSR1)\n"
        "signal.pause()"
    )
    assert worker_group.run({"one": [sys.executable, "-c", asks]}) == 0
    assert signal.getsignal(signal.SIGUSR1) is before


def test_the_command_is_listed_with_its_words(capsys):
    text = CliRunner().invoke(group, ["worker", "--help"]).stdout
    assert "SERVICE [CELERY WORKER OPTIONS]..." in text
    assert isinstance(nouns.commands["worker"], click.Command)
