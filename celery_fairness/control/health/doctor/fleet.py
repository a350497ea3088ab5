"""The checks of workers, queues, tenants and limits, from what runs now and ran lately."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import read_tier_key
from celery_fairness.control.health.doctor.facts import (
    LAST_MINUTES,
    TRIAL_SECONDS,
    FleetFacts,
    backend_name,
)
from celery_fairness.control.health.doctor.symptoms import Found, advice, problem
from celery_fairness.control.health.verdict import (
    missing_text,
    named,
    not_enforced,
    tasks_text,
    tasks_wait,
    they_had,
    unannounced_name,
    unannounced_text,
    unresolved_text,
    unseen_text,
)
from celery_fairness.control.installation.workers import not_enforcing
from celery_fairness.control.tenant.unresolved_tiers import lately

#: A library that no worker of the installation has used for this long is old.
OLD_LIBRARY = timedelta(days=1)
#: Workers should observe for this long before they enforce limits.
OBSERVED_FOR = timedelta(days=1)
#: A limit that was not reached in this time may be too high.
UNREACHED_FOR = timedelta(days=7)
#: A lost memory is a symptom for this long.
LOSS_FOR = timedelta(days=7)
#: A task without a valid tenant is a problem for this long.
LATELY = timedelta(minutes=LAST_MINUTES)
_COMMAND = "celery -A APP fairness"


def workers(facts: FleetFacts) -> Iterator[Found]:
    """Find that no worker is announced."""
    if not facts.status.workers:
        others = facts.status.replies.answered
        yield advice(
            "no worker of this installation runs" if others else "no worker runs",
            "no limit holds for the tasks that others start" if others else "no task starts",
            f"start one, and check that its namespace is {facts.installation.settings.namespace}",
        )


def enforcement(facts: FleetFacts) -> Iterator[Found]:
    """Find that workers do not enforce limits; a problem if others do."""
    running = facts.status.workers
    others = not_enforcing(running)
    if not others:
        return
    names = named([each.name for each in others])
    if len(others) < len(running):
        yield problem(
            f"{not_enforced(len(others), len(running))}: {names}",
            "they start tasks above the limits, and the other workers then reject the same tenants",
            "give all workers the same FAIRNESS_ENABLED, and restart these",
        )
    elif all(each.enforcement == Enforcement.OBSERVE.value for each in others):
        yield _observing(facts)
    else:
        yield advice(
            "no worker enforces limits",
            "one tenant can take all places",
            f"set FAIRNESS_ENABLED=observe for a day, look at {_COMMAND} observed, then set it to "
            "true",
        )


def _observing(facts: FleetFacts) -> Found:
    """Return that no worker enforces limits, the tasks above them so far, and the next step."""
    observed = facts.observed
    since = observed.since if observed is not None else None
    text = "" if since is None else f", since {since:%Y-%m-%d %H:%M} UTC"
    consequence = "no limit holds; no task of the last 24 hours would have been rejected"
    if observed is not None and observed.over_limit:
        first = observed.tenants[0]
        consequence = (
            f"no limit holds; {tasks_text(observed.over_limit)} of the last 24 hours would have "
            f"been rejected, {first.over_limit:,} of them of {first.key}"
        )
    wait = "after a day "
    if since is not None:
        ready = since + OBSERVED_FOR
        wait = "" if ready <= facts.stored.now else f"after {ready:%Y-%m-%d %H:%M} UTC "
    return advice(
        f"all workers only observe{text}",
        consequence,
        f"{wait}look at {_COMMAND} observed, choose the numbers of the tiers, then set "
        "FAIRNESS_ENABLED=true (docs/how-to/turn-off.md)",
    )


def unannounced(facts: FleetFacts) -> Iterator[Found]:
    """Find that no worker answers Celery, or one that is not announced does.

    A problem if that worker takes a queue of the installation.
    """
    replies, namespace = facts.status.replies, facts.installation.settings.namespace
    if why := unseen_text(replies):
        if facts.status.workers or replies.problem:
            yield advice(
                f"workers without celery-fairness cannot be seen: {why}",
                "such a worker starts tasks without limits, and nobody would be warned",
                "let workers answer celery -A APP inspect ping, or compare their images yourself",
            )
    elif replies.sharing:
        one = len(replies.sharing) == 1
        they, lack, have, start = (
            ("it", "lacks", "has", "starts") if one else ("they", "lack", "have", "start")
        )
        yield problem(
            unannounced_text(replies),
            f"{they} {lack} celery-fairness or {have} other settings, and {start} tasks without "
            "the limits of this installation",
            f"stop {'it' if one else 'them'}, or install celery-fairness there with the namespace "
            f"{namespace} in this Redis",
        )
    others = [unannounced_name(each) for each in replies.unannounced if not each.shares]
    if others:
        noun, verb = ("worker", "takes") if len(others) == 1 else ("workers", "take")
        yield advice(
            f"{len(others)} other {noun} on this broker {verb} no queue that is known here: "
            f"{named(others)}",
            "no task of a known queue starts there",
            "nothing needs to be done if it belongs to another app",
        )


def leases(facts: FleetFacts) -> Iterator[Found]:
    """Find that workers have different ``lease_seconds``."""
    found = facts.status.workers
    lengths = sorted({each.lease_seconds for each in found if each.lease_seconds})
    if len(lengths) > 1:
        yield problem(
            f"workers have different lease_seconds: {', '.join(f'{each:g}' for each in lengths)}",
            "a worker with short leases may end those of another, and its tasks run twice",
            "give all workers the same settings",
        )


def installations(facts: FleetFacts) -> Iterator[Found]:
    """Find that several apps share the namespace; a problem if their result backends differ."""
    found = [each for each in facts.status.workers if each.app is not None]
    app = facts.installation.app
    names = sorted({app.main or "", *(each.app or "" for each in found)})
    backends = {backend_name(app), *(each.backend or "" for each in found)}
    what = f"the namespace {facts.installation.settings.namespace}"
    if len(backends) > 1:
        yield problem(
            f"apps with {len(backends)} result backends share {what}",
            "a worker of any of them stores the results of lost tasks, where their callers do not "
            "look",
            "give each installation a namespace of its own, or all apps one result_backend",
        )
    elif len(names) > 1:
        yield advice(
            f"{len(names)} apps share {what}: {named(names)}",
            "a tenant's limit counts over all of them",
            "give each installation a namespace of its own, unless that is meant",
        )


def queues(facts: FleetFacts) -> Iterator[Found]:
    """Find that no worker takes a queue; a problem if tasks wait."""
    status = facts.status
    taken = {queue for worker in status.workers for queue in worker.queues}
    has_gate = any(each.path == "gate" for each in status.workers)
    waiting = {each.queue: each.waiting for each in status.queues if each.waiting}
    left = [queue for queue in waiting if not (queue in taken if queue else has_gate)]
    if left:
        tasks = sum(waiting[queue] for queue in left)
        names = [queue or "(parked)" for queue in left]
        yield problem(
            f"no worker takes {_queues(names)}: {named(names)}",
            f"{tasks_wait(tasks)} there until one does",
            f"start a worker with -Q {shlex.quote(left[0])}" if left[0] else "start a worker",
        )
    named_queues = dict.fromkeys(facts.installation.app_queues())
    others = {queue for each in status.replies.unannounced for queue in each.queues or ()}
    seen = taken | others | waiting.keys()
    idle = [name for name in named_queues if name not in seen]
    if idle and status.workers:
        yield advice(
            f"no worker takes {_queues(idle)}: {named(idle)}",
            "a task that is sent there never starts",
            "start a worker that takes it, or take it out of task_queues and services",
        )


def paused(facts: FleetFacts) -> Iterator[Found]:
    """Find that tasks wait for a tenant or limit that is paused."""
    rows = facts.status.queues
    by_service = facts.installation.settings.tier_scope == "service"
    tenants = {
        share.key: read_tier_key(share.key, by_service) or (share.key, None)
        for queue in rows
        for share in queue.tenants
        if share.state == "paused"
    }
    if tenants:
        names = list(dict.fromkeys(tenant for tenant, _ in tenants.values()))
        key, (tenant, service) = next(iter(tenants.items()))
        first, apart = shlex.quote(tenant), f" --service {service}" if service else ""
        # A pause of such a name is one of the keys of its services.
        of_key = by_service and ":" in tenant
        ends = f"limit resume {shlex.quote(key)}" if of_key else f"tenant resume {first}"
        who, are = ("tenant", "is") if len(names) == 1 else ("tenants", "are")
        tasks = sum(
            share.waiting for queue in rows for share in queue.tenants if share.key in tenants
        )
        yield advice(
            f"the {who} {named(names)} {are} paused or may run 0 tasks",
            f"{tasks_wait(tasks)} until that ends",
            f"look at {_COMMAND} tenant show {first}{apart}; {ends} ends a pause",
        )
    limits = {
        limit.key: limit.waiting
        for queue in rows
        for limit in queue.limits
        if limit.reason == "paused"
    }
    if limits:
        names, first = list(limits), shlex.quote(next(iter(limits)))
        yield advice(
            f"the limit {named(names)} is paused or 0",
            f"{tasks_wait(sum(limits.values()))} until that ends",
            f"look at {_COMMAND} limit show {first}; limit resume {first} ends a pause",
        )


def tenants(facts: FleetFacts) -> Iterator[Found]:
    """Find that tasks of the last 15 minutes had no tenant; a problem if tenants were invalid."""
    started: Counter[bool] = Counter()
    for minute in facts.minutes:
        for row in minute.counts:
            started[row.tier == ""] += row.started
    without, total = started[True], started.total()
    if without and facts.installation.settings.no_tenant == "bypass":
        yield advice(
            f"{without:,} of {total:,} tasks of the last {LAST_MINUTES} minutes had no tenant",
            "no tier limits them, and they count as one tenant in the turns",
            "give these tasks base=FairTask and tenant=, or set no_tenant to 'shared' or 'error'",
        )
    invalid, last = facts.status.counts.get("invalid", 0), facts.stored.invalid_at
    if last is not None and facts.stored.now - last <= LATELY:
        yield problem(
            f"{tasks_text(invalid)} had no valid tenant, the last one at {last:%H:%M} UTC",
            "together they share one limit of the default tier",
            "correct the producer that logs: is attributed to the tenant _invalid",
        )


def resolver(facts: FleetFacts) -> Iterator[Found]:
    """Find that the tier resolver failed in the last 15 minutes, or fails for tenants that wait.

    It is called here for at most five tenants.
    """
    default, rows = facts.installation.settings.default_tier, facts.status.unresolved
    failing = lately(rows, facts.status.at)
    trial = facts.trial
    wrong = {tenant: why for tenant, why in (trial or {}).items() if why}
    fix = "correct it, or start the service that it needs; the logs of the process have the error"
    if trial is None:
        here = f"does not answer here within {TRIAL_SECONDS:g} s"
    elif wrong:
        tenant, why = next(iter(wrong.items()))
        here = f"fails here for {len(wrong)} of {len(trial)} tenants, for {tenant} with {why}"
    elif failing and trial:
        here = f"answers here for {named([*trial])}"
        fix = f"compare the settings of the other processes with those of this one; {fix}"
    else:
        here = ""
    if failing:
        yield problem(
            unresolved_text(failing) + (f"; it {here}" if here else ""),
            they_had(failing, default),
            fix,
        )
    elif trial is None or wrong:
        yield problem(f"the tier resolver {here}", f"tenants have the default tier {default}", fix)


def missing(facts: FleetFacts) -> Iterator[Found]:
    """Find that the servers of partitions do not answer. All checks are about the others."""
    if names := facts.status.missing:
        yield problem(
            missing_text(names),
            "the tasks of their tenants wait, and nobody can send them new ones",
            "start the servers, and look at the network between them and this host",
        )


def partitions(facts: FleetFacts) -> Iterator[Found]:
    """Find that waiting tasks have no value for the arguments of their queue's partitions."""
    for queue, count in facts.nameless.items():
        policy = facts.installation.settings.queues[queue]
        arguments = ", ".join(policy.by_args or ())
        yield advice(
            f"{tasks_wait(count)} in queue {queue} without a value for {arguments}",
            "they share one partition and its limit",
            f"send the tasks with {arguments}, or set missing to 'error' to find the producer",
        )


def unreached(facts: FleetFacts) -> Iterator[Found]:
    """Find that a declared limit has rejected no task in a week or longer."""
    began = facts.stored.began
    if began is None or facts.stored.now - began < UNREACHED_FOR or facts.other_keys_rejected:
        return
    declared = {each.key for each in facts.installation.declared_limits()}
    keys = sorted(declared - facts.rejecting_keys)
    if keys:
        since = f"{began:%Y-%m-%d}"
        yield advice(
            f"{'a limit was' if len(keys) == 1 else f'{len(keys)} limits were'} never reached "
            f"since {since}: {named(keys)}",
            "a limit that is too high protects nothing",
            f"compare it with what it holds at busy times: {_COMMAND} limit show {keys[0]}",
        )


#: By cause: what is true of dead letters, what follows, and what to do.
_LETTERS = {
    "deaths": (
        "their processes died too often",
        "a task that may have killed its processes does not run again by itself",
        f"look for the cause in the workers' logs, then use {_COMMAND} task requeue ID",
    ),
    "unreadable": (
        "a worker could not read their messages",
        "they ran at no worker, and would fail again",
        "correct the producer, or the worker that lacks a serializer, and send the tasks again",
    ),
    "lost": (
        "Redis no longer has their messages",
        "something deleted them, such as an eviction at maxmemory, so they cannot run again",
        "set maxmemory-policy noeviction, and send the tasks again",
    ),
}


def letters(facts: FleetFacts) -> Iterator[Found]:
    """Find that there are dead letters, by their causes."""
    rows = facts.status.queues
    dead = [each.queue for each in rows if each.dead]
    count = sum(each.dead for each in rows)
    if not count:
        return
    where = f"{_letters(count)} in {_queues(dead)} {named(dead)}"
    causes: Counter[str] = Counter(each.cause for each in facts.letters)
    for cause, (what, consequence, fix) in _LETTERS.items():
        amount = causes[cause]
        if amount == count:
            yield advice(f"{where}: {what}", f"{consequence}; {_COMMAND} task dead shows them", fix)
        elif amount:
            some = f"{amount:,} of the first {len(facts.letters):,}"
            yield advice(
                f"{where}; of {some}: {what}",
                f"{consequence}; {_COMMAND} task dead shows them",
                fix,
            )


def memory_lost(facts: FleetFacts) -> Iterator[Found]:
    """Find that Redis has lost its memory in the last week."""
    began = facts.stored.began
    is_recent = began is not None and facts.stored.now - began <= LOSS_FOR
    if is_recent and facts.status.counts.get("memory_lost"):
        yield advice(
            f"Redis lost its memory on {began:%Y-%m-%d at %H:%M} UTC",
            "tasks that waited there, pauses and overrides are gone",
            "send lost tasks again, and follow docs/how-to/recover-redis.md",
        )


def old_libraries(facts: FleetFacts) -> Iterator[Found]:
    """Find that the server has function libraries that the installation has not used for a day."""
    old = [
        each
        for each in facts.libraries or ()
        if not each.current and (each.used is None or facts.stored.now - each.used > OLD_LIBRARY)
    ]
    if old:
        size = sum(each.size for each in old) / 2**10
        yield advice(
            f"{len(old)} old function {'library is' if len(old) == 1 else 'libraries are'} on the "
            f"server: {named([each.name for each in old])}",
            f"they take {size:,.0f} KiB of its memory",
            f"{_COMMAND} library --delete {old[0].name}, unless another installation uses it",
        )


def _queues(names: list[str]) -> str:
    return "the queue" if len(names) == 1 else f"{len(names)} queues"


def _letters(count: int) -> str:
    return "1 dead letter is" if count == 1 else f"{count:,} dead letters are"
