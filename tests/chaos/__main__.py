"""``make chaos``: kill, freeze and cut, and print what was lost, doubled or exceeded."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence

from tests.chaos import ledger
from tests.chaos.plan import PLANS, STARVABLE, On, Plan, on_cluster, scaled
from tests.chaos.run import Run
from tests.chaos.story import Story
from tests.chaos.verdict import EXPLANATIONS, FROZEN, OUTAGE, UNEXPLAINED, Excess, Verdict
from tests.chaos.waits import (
    CHILD_SECONDS,
    RESUME_IN_CLUSTER_SECONDS,
    RESUME_SECONDS,
    SLACK_SECONDS,
    Wait,
)

#: Tasks whose lines are printed, of each kind of fault in the product.
SHOWN = 3


def main() -> int:
    """Run and print; returns 1 where a threshold does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="about two minutes")
    which.add_argument("--deaths", action="store_true", help="1,000 kills and no other fault")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="how long faults happen")
    length.add_argument("--kills", type=int, help="of workers, and as many of children")
    parser.add_argument(
        "--partitions", type=int, default=1, help="divide the tenants on our broker"
    )
    parser.add_argument("--seed", type=int, help="decides faults and load")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gate", action="store_true", help="on RabbitMQ instead of fairredis")
    where.add_argument("--cluster", action="store_true", help="on a Redis Cluster, with its faults")
    parser.add_argument("--stock", action="store_true", help="plain Celery beside it")
    options = parser.parse_args()
    form = "quick" if options.quick else "deaths" if options.deaths else "full"
    if options.cluster and options.stock:
        parser.error("plain Celery has no broker on a cluster: expected --cluster without --stock")
    if options.partitions > 1 and (options.stock or options.gate):
        parser.error("only our broker has partitions: expected --partitions with neither of these")
    plan = on_cluster(PLANS[form]) if options.cluster else PLANS[form]
    if options.seconds:
        plan = scaled(plan, options.seconds / plan.seconds)
    elif options.kills:
        plan = scaled(plan, options.kills / plan.amounts["kill worker"])
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    # An orderly end, so that everything that was started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(
        f"seed {seed}, {plan.seconds:.0f} s of faults, lease {plan.lease_seconds:g} s, "
        f"{os.cpu_count()} cores",
        flush=True,
    )
    begun = time.monotonic()
    on: On = "gate" if options.gate else "faircluster" if options.cluster else "fairredis"
    runs = [Run(plan, seed, on, form, options.partitions)]
    if options.stock:
        runs.append(Run(plan, seed, "stock", form))
    verdicts = []
    for run in runs:
        os.environ[ledger.VARIABLE] = str(run.path)
        verdicts.append(run.run())
    holds = verdicts[0].holds_within(plan.patience)
    if not verdicts[0].holds:
        _print_lines(runs[0], verdicts[0])
    # It is last, because the end of a long output is what people read.
    _print_table(plan, runs, verdicts)
    for run, verdict in zip(runs, verdicts, strict=True):
        if verdict is verdicts[0] and not holds:
            print(f"ledger and logs of {run.name}: {run.directory}")
        else:
            shutil.rmtree(run.directory, ignore_errors=True)
    word = "every threshold holds" if holds else "THRESHOLDS DO NOT HOLD"
    if holds and not verdicts[0].holds:
        word = f"{word}, but for the late ones above, which took less than twice their time"
    print(f"seed {seed}, {time.monotonic() - begun:.0f} s: {word}")
    return 0 if holds else 1


def _waits(waits: Sequence[Wait]) -> str:
    if not waits:
        return "none seen"
    seconds = [wait.seconds for wait in waits]
    late = sum(not wait.holds for wait in waits)
    return (
        f"{len(waits)} seen, median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s, "
        f"{late} late"
    )


def _counts(verdict: Verdict) -> str:
    return "-" if verdict.uniques is None else ", ".join(map(str, verdict.uniques))


def _split(
    what: str, seconds: float, resumes: float, waits: Sequence[Wait]
) -> list[tuple[str, str, str]]:
    """The waits that no outage fell into, and the others, which may take longer by it."""
    bound, longer = f"<= {seconds:g} s", f"<= {seconds:g} s, the outage and {resumes:g} s"
    return [
        (f"{what}, without an outage", bound, _waits([each for each in waits if not each.more])),
        ("   during an outage", longer, _waits([each for each in waits if each.more])),
    ]


def _rows(plan: Plan, run: Run, verdict: Verdict) -> list[tuple[str, str, str]]:
    asked_of_worker = plan.lease_seconds + SLACK_SECONDS
    resumes = RESUME_IN_CLUSTER_SECONDS if run.name == "faircluster" else RESUME_SECONDS
    asked = "0" if verdict.judges_begins else ""
    again, back = list(verdict.early_again.values()), verdict.workers_back
    done = [f"{run.happened[kind]} {kind}" for kind in plan.amounts]
    return [
        ("faults", "", ", ".join(done[:4])),
        ("", "", ", ".join(done[4:7])),
        ("", "", ", ".join(done[7:])),
        ("tasks sent, done", "", f"{verdict.submitted}, {verdict.done}"),
        (
            "   attempts of tasks that were parked",
            "",
            "-" if verdict.parked is None else str(verdict.parked),
        ),
        ("R1 lost", "0", str(len(verdict.lost))),
        ("   early-acked, gone with their process", "", str(len(verdict.gone))),
        ("   gone with a primary, no replica had them", "", str(len(verdict.unheld))),
        ("R1 times above a limit", "0", str(len(verdict.excesses))),
        ("R1 windows above a rate or a throttle", "0", str(len(verdict.rushes))),
        ("   only by workers frozen past their lease", "", str(verdict.excesses_of_freezes)),
        *_split("R2 slot back after a killed child", CHILD_SECONDS, resumes, verdict.after_child),
        *_split(
            "R2 slot back after a killed worker", asked_of_worker, resumes, verdict.after_worker
        ),
        ("   not judged: a freeze, a death before or no place", "", str(verdict.not_checked)),
        (
            "R3 times above a limit by an outage",
            "0",
            str(len(verdict.excesses_of_outages)),
        ),
        ("   by claims that no replica had", "", str(verdict.excesses_of_lost_writes)),
        ("R3 work again after an outage", f"<= {resumes:g} s", _waits(verdict.resumes)),
        ("   each worker, in a cluster", f"<= {RESUME_IN_CLUSTER_SECONDS:g} s", _waits(back)),
        ("   delay() failed, by no outage or a planned one", "0", str(len(verdict.refused))),
        *(
            (
                f"R7 wait for {what}",
                f"<= {bound + plan.longest_seconds:g} s, and faults",
                _waits(verdict.starvable.get(what, ())),
            )
            for what, (_, bound) in STARVABLE.items()
        ),
        ("R8 promises of unique tasks that were broken", "0", str(len(verdict.broken))),
        ("   ran, dropped, replaced, existing", "", _counts(verdict)),
        ("R5 keys and messages left", "0", str(len(verdict.leftovers))),
        ("workers that ended by an error of the package", "0", str(len(verdict.crashed))),
        ("   by one of Celery's own", "", str(verdict.crashed_by_celery)),
        ("ran to the end twice", "", str(len(verdict.duplicates))),
        *(
            (f"   {why}", "", str(list(verdict.duplicates.values()).count(why)))
            for why in EXPLANATIONS
        ),
        ("R6 early-acked tasks begun again", asked, str(again.count(UNEXPLAINED))),
        *((f"   {why}", "", str(again.count(why))) for why in (FROZEN, OUTAGE)),
        ("R6 poisons begun too often", asked, f"{len(verdict.too_often)} of {verdict.poisons}"),
        ("R6 dead letters that died less often", asked, str(len(verdict.innocents))),
        ("   dead letters that died so often", "", str(verdict.letters - len(verdict.innocents))),
        (
            "R6 unreadable messages that vanished",
            asked,
            f"{verdict.not_set_aside} of {verdict.unreadable}" if asked else "-",
        ),
    ]


def _print_table(plan: Plan, runs: Sequence[Run], verdicts: Sequence[Verdict]) -> None:
    tables = [_rows(plan, run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
    head = ("", "asked", *(run.name for run in runs))
    rows = [(*row[0][:2], *(cell[2] for cell in row)) for row in zip(*tables, strict=True)]
    widths = [max(map(len, column)) + 2 for column in zip(head, *rows, strict=True)]
    print()
    for row in (head, *rows):
        print("".join(map(str.ljust, row, widths)).rstrip())
    for run in runs:
        if run.stock:
            print(
                f"stock: redis://, no limits, visibility_timeout {run.visibility_seconds:g} s; its "
                f"column is not judged"
            )
    print()


def _print_lines(run: Run, verdict: Verdict) -> None:
    """Print what the ledger says of the first tasks of each kind."""
    story = Story(run.events, run.plan.lease_seconds)
    for task_id in verdict.lost[:SHOWN]:
        _print_task(story, f"lost: {task_id}", [task_id])
    for call in verdict.refused[:SHOWN]:
        _print_task(story, f"delay() failed: {call['error']}", [call["id"]])
    for excess in [*verdict.excesses, *verdict.excesses_of_outages][:SHOWN]:
        _print_excess(story, excess)
    for rush in verdict.rushes[:SHOWN]:
        what = (
            f"{rush.counted} of {rush.key} in {len(rush.ids)} starts at {rush.begun:.3f} in "
            f"{rush.seconds:.3f} s"
        )
        _print_task(story, what, rush.ids)
    for promise in verdict.broken[:SHOWN]:
        _print_task(story, promise.what, promise.ids)
    if verdict.judges_begins:
        again = [name for name, why in verdict.early_again.items() if why == UNEXPLAINED]
        for task_id in [*again, *verdict.too_often][:SHOWN]:
            _print_task(story, f"begun too often: {task_id}", [task_id])
        for task_id in verdict.innocents[:SHOWN]:
            _print_task(story, f"a dead letter without its deaths: {task_id}", [task_id])
    waits = [*verdict.after_child, *verdict.after_worker, *verdict.resumes, *verdict.workers_back]
    waits += [wait for each in verdict.starvable.values() for wait in each]
    for wait in waits:
        if not wait.holds:
            print(
                f"late: {wait.what} at {wait.at:.3f}: {wait.seconds:.2f} s, "
                f"allowed {wait.allowed:.2f} s"
            )
    for name in verdict.crashed:
        print(f"ended by an error of the package: {name}, see {run.directory}/{name}.log")
    for name, what in verdict.leftovers.items():
        print(f"left: {name}: {what}")


def _print_excess(story: Story, excess: Excess) -> None:
    seconds = excess.over - excess.begun
    what = f"above its limit: {excess.key} at {excess.begun:.3f} for {seconds:.3f} s"
    _print_task(story, what, excess.ids)


def _print_task(story: Story, what: str, ids: Sequence[str]) -> None:
    print(what)
    for task_id in dict.fromkeys(ids):
        for line in story.lines_of(task_id):
            print("   ", line)


if __name__ == "__main__":
    sys.exit(main())
