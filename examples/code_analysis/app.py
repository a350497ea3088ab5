"""The platform's Celery app, which every process of a run imports.

The same tasks on the same broker run in a mode, by the variable `CODE_ANALYSIS_MODE`. `plain` is
Celery without this package, with one queue. The others add the three lines that the package needs:
the settings, `Fairness(app)`, and `FairTask` as the tasks' base. `turns` has no limits.

Invariant: apart from those lines all modes have the same code and the same settings.

Weakness: it needs environment variables that the demo sets. Its import fails without them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.signals import after_task_publish, before_task_publish, task_received, worker_ready

from examples.code_analysis.ledger import Ledger, now_seconds
from examples.code_analysis.users import tier_of

try:
    BROKER = os.environ["CODE_ANALYSIS_BROKER"]
    MODE = os.environ["CODE_ANALYSIS_MODE"]
    FOLDER = Path(os.environ["CODE_ANALYSIS_FOLDER"])
except KeyError as missing:
    raise RuntimeError(
        f"{missing.args[0]} expected to be set, got: nothing; start with "
        "`python -m examples.code_analysis`"
    ) from None

#: ADR-10 has 30 and 10, which is too long for a demo of a minute.
SNOOZE_SECONDS = 1.0
SNOOZE_JITTER_SECONDS = 1.0

ledger = Ledger(FOLDER / "ledger")

app = Celery("code_analysis", broker=BROKER, include=["examples.code_analysis.tasks"])
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_schedule_filename = str(FOLDER / "beat-schedule")
app.conf.beat_schedule = {
    "analyze http again": {
        "task": "examples.code_analysis.tasks.analyze",
        "schedule": 2.0,
        "args": ["http"],
    },
    "analyze logging again": {
        "task": "examples.code_analysis.tasks.analyze",
        "schedule": 3.0,
        "args": ["logging"],
    },
}

JobTask: type[Task[Any, Any]] = Task
if MODE != "plain":
    from celery_fairness import Fairness, FairTask

    limits = {
        "tier_resolver": tier_of,
        "snooze_seconds": SNOOZE_SECONDS,
        "snooze_jitter_seconds": SNOOZE_JITTER_SECONDS,
    }
    app.conf.fairness = {"tiers": "unlimited"} if MODE == "turns" else limits
    fairness = Fairness(app)
    JobTask = FairTask


#: By job: the time at which its present publish began, because a publish may take long.
_handed_over: dict[str, float] = {}


@before_task_publish.connect
def _note_time(headers: dict[str, Any], **_: Any) -> None:
    _handed_over[headers["id"]] = now_seconds()


@after_task_publish.connect
def _write_sent(
    sender: str, headers: dict[str, Any], body: tuple[Any, dict[str, Any], Any], **_: Any
) -> None:
    # Every publish passes here: from the sender, from beat, and from a chain. `body` is (args,
    # kwargs, embed), as Celery's protocol 2 has it. Written once it is done: beat may be ended in
    # the midst of it, and what was never sent cannot be lost.
    ledger.write(
        "sent",
        at_seconds=_handed_over.pop(headers["id"], now_seconds()),
        job=headers["id"],
        user=body[1].get("user_id"),
        kind=sender.rpartition(".")[2],
    )


@task_received.connect
def _write_received(request: Any, **_: Any) -> None:
    ledger.write("received", job=request.id)


@worker_ready.connect
def _write_ready(**_: Any) -> None:
    ledger.write("ready")
