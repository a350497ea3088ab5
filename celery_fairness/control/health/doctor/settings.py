"""The checks of the settings of the app, and of the tiers and times that Redis stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.app.task import Task

from celery_fairness.compat.celery_app import is_set
from celery_fairness.config.environment import chosen_tiers, unknown_variables
from celery_fairness.config.numbers import DISPATCH, UNLIMITED, numbers_of
from celery_fairness.config.settings import Enforcement, Settings, without_effect
from celery_fairness.control.health.doctor.facts import Facts
from celery_fairness.control.health.doctor.symptoms import Found, advice, problem
from celery_fairness.control.health.verdict import named
from celery_fairness.message.redelivery import VISIBILITY_SHARE, visibility_seconds
from celery_fairness.message.task_options import ignored_options
from celery_fairness.store.address import address_from_broker, address_from_url

#: Leases below the first are short, and above the second are long, in seconds.
SHORT_LEASE_SECONDS, LONG_LEASE_SECONDS = 3.0, 60.0
#: A lease is long if it has the time of so many tasks.
TASKS_IN_A_LEASE = 10
#: A rate of a tier with a longer period holds many tasks back for long, in seconds.
LONG_PERIOD_SECONDS = 300.0
#: Tasks that take longer than this should not be prefetched, in seconds.
LONG_TASK_SECONDS = 10.0
#: The effect of each option on a task that is no FairTask.
_WITHOUT_BASE = {
    "tenant": "no tenant is charged",
    "limits": "no limit of the task holds",
    "service": "no tier chooses the queue",
    "scheduled": "no tier chooses the queue",
}


def variables(facts: Facts) -> Iterator[Found]:
    """Find that a variable ``FAIRNESS_…`` is not known."""
    for name, fix in unknown_variables(facts.installation.environ):
        yield problem(f"variable {name} is not known", "it has no effect", fix)


def ignored(facts: Facts) -> Iterator[Found]:
    """Find that a setting or option has no effect on this path."""
    settings = facts.settings
    path = "on fairredis" if facts.claims else "at a gate"
    # A shared settings file names the broker's Redis for both paths.
    apart = {"redis_url", "tier_on_limit"}
    for name in without_effect(settings, facts.claims):
        if name not in apart:
            yield advice(
                f"{name} is set and has no effect {path}",
                "it only misleads who reads it",
                "unset it",
            )
    if not facts.claims:
        return
    if _is_other_redis(facts.app, settings):
        yield problem(
            "redis_url or FAIRNESS_REDIS_URL is set to another Redis than the broker's",
            "it is ignored, because on fairredis the limits are beside the queues",
            "unset it",
        )
    if "tier_on_limit" in settings.model_fields_set and settings.tier_on_limit == "reschedule":
        yield advice(
            "tier_on_limit is 'reschedule'",
            "it is ignored, because on fairredis a task over its tier's limit waits in Redis, "
            "where that costs nothing",
            "unset it",
        )
    if "visibility_timeout" in (facts.app.conf.broker_transport_options or {}):
        yield advice(
            "visibility_timeout of broker_transport_options is set",
            "it is ignored, because on fairredis the tasks of a worker that is gone come back "
            "when its leases end, after lease_seconds",
            "unset it",
        )


def visibility(facts: Facts) -> Iterator[Found]:
    """Find that gate: a snooze is longer than the broker's ``visibility_timeout`` allows."""
    timeout = None if facts.claims else visibility_seconds(facts.app)
    if timeout is None:
        return
    settings = facts.settings
    snooze = settings.snooze_seconds + settings.snooze_jitter_seconds
    longest = timeout * VISIBILITY_SHARE
    if snooze > longest:
        yield problem(
            f"snooze_seconds + snooze_jitter_seconds is {snooze:g} s, and the broker delivers a "
            f"waiting message again after {timeout:g} s (visibility_timeout)",
            f"countdowns are cut to {longest:g} s",
            "raise visibility_timeout, or shorten the snooze",
        )


def eta_limit(facts: Facts) -> Iterator[Found]:
    """Find that gate: ``worker_eta_task_limit`` is set."""
    limit = int(facts.app.conf.get("worker_eta_task_limit") or 0)
    if limit and not facts.claims:
        yield problem(
            f"worker_eta_task_limit is {limit}",
            "rejected tasks wait in the worker with a countdown, and when that many wait the "
            "worker takes no other task",
            "unset it",
        )


def prefetch(facts: Facts) -> Iterator[Found]:
    """Find that ``worker_prefetch_multiplier`` lets a worker hold tasks that others could start.

    A problem if it is 0.
    """
    conf, multiplier = facts.app.conf, None
    if conf.get("worker_disable_prefetch"):
        return
    if is_set(facts.app, "worker_prefetch_multiplier"):
        multiplier = int(conf.worker_prefetch_multiplier)
    if multiplier == 0:
        yield problem(
            "worker_prefetch_multiplier is 0",
            "the first worker takes every task, and the others get none",
            "unset it" if facts.claims else "set it to 1",
        )
    elif facts.claims and multiplier is not None and multiplier > 1:
        yield advice(
            f"worker_prefetch_multiplier is {multiplier}",
            "tasks that wait in a worker hold slots of their tenants and limits, and run in the "
            "order in which they came",
            "unset it",
        )
    elif not facts.claims and facts.stored is not None and (multiplier or 4) > 1:
        means = facts.stored.task_seconds
        longest = max(means, key=lambda name: means[name], default="")
        if longest and means[longest] > LONG_TASK_SECONDS:
            yield advice(
                f"task {longest} takes {means[longest]:.0f} s, and a worker prefetches "
                f"{multiplier or 4} messages for each process",
                "tasks wait behind it in one worker while another worker is free",
                "set worker_prefetch_multiplier = 1 and task_acks_late = True",
            )


def lease(facts: Facts) -> Iterator[Found]:
    """Find that ``lease_seconds`` is below 3, or above 60 and ten times the time of a task."""
    length = facts.settings.lease_seconds
    if length < SHORT_LEASE_SECONDS:
        yield advice(
            f"lease_seconds is {length:g}",
            f"a worker that stands still for {length:g} s loses its slots, and other tasks start "
            "above the limits",
            f"set it to {SHORT_LEASE_SECONDS:g} or more; the default is 15",
        )
    means = facts.stored.task_seconds if facts.stored is not None else {}
    longest = max(means.values(), default=0.0)
    if length > LONG_LEASE_SECONDS and means and length > TASKS_IN_A_LEASE * longest:
        yield advice(
            f"lease_seconds is {length:g}, and tasks take {longest:.1f} s at most",
            f"the slots of a worker that died stay taken for {length:g} s",
            "shorten it; the default is 15",
        )


def priorities(facts: Facts) -> Iterator[Found]:
    """Find that ``fairredis``: tasks have priorities, and ``priority_order`` is not set."""
    found = _prioritised(facts.app)
    if facts.claims and found and "priority_order" not in facts.settings.model_fields_set:
        yield advice(
            f"priority_order is not set, and there are priorities: {named(found)}",
            "the highest goes first here, and went last on redis://",
            "set priority_order to 'low_first' for the order of redis://, or to 'high_first' to "
            "keep this one",
        )


def partition_numbers(facts: Facts) -> Iterator[Found]:
    """Find that a queue has ``by_args`` or ``by_kind`` without ``partition``."""
    for name, policy in sorted(facts.settings.queues.items()):
        if policy.partitioned and policy.partition is None:
            word = "by_kind" if policy.by_args is None else "by_args"
            yield advice(
                f"queue {name} has {word} and no partition",
                "its numbers bound the whole queue, and no number bounds a partition",
                "move the numbers of each partition into partition; {} is for none",
            )


def numbers_of_one_path(facts: Facts) -> Iterator[Found]:
    """Find that gate: a tier has a number that acts on ``fairredis`` alone."""
    if facts.claims:
        return
    for word, number in numbers_of("tier").items():
        tiers = [
            name
            for name, tier in sorted(facts.settings.tiers.items())
            if number.acts_on == DISPATCH and getattr(tier, word) is not None
        ]
        if tiers:
            yield advice(
                f"{word} is set for tier {named(tiers)}",
                "it has no effect at a gate, because only fairredis knows what waits",
                "unset it, or move the queues to fairredis://",
            )


def base(facts: Facts) -> Iterator[Found]:
    """Find that a task has options of ``FairTask``, such as ``tenant``, and another class."""
    tasks = {
        name: ignored
        for name, task in sorted(facts.app.tasks.items())
        if (ignored := ignored_options(task))
    }
    if not tasks:
        return
    given = {option for options in tasks.values() for option in options}
    options = [name for name in _WITHOUT_BASE if name in given]
    which = f"task {named([*tasks])} has" if len(tasks) == 1 else f"{len(tasks)} tasks have"
    more = f": {named([*tasks])}" if len(tasks) > 1 else ""
    effects = dict.fromkeys(_WITHOUT_BASE[name] for name in options)
    yield problem(
        f"{which} {' and '.join(f'{name}=' for name in options)} without base=FairTask{more}",
        f"Celery ignores {'this option' if len(options) == 1 else 'these options'}: "
        f"{' and '.join(effects)}",
        "set base=FairTask",
    )


def strategies(facts: Facts) -> Iterator[Found]:
    """Find that gate: a FairTask has a ``Strategy`` of its own, which may pass no gate."""
    own = [
        name
        for name, task in sorted(facts.app.tasks.items())
        if hasattr(task, "tenant_source") and task.Strategy != Task.Strategy
    ]
    if own and not facts.claims:
        which = "task" if len(own) == 1 else "tasks"
        yield problem(
            f"{which} {named(own)} with a Strategy that is not Celery's",
            "such a class, for example that of celery-batches, may call the body past Celery's "
            "tracer, which has the gate: then no limit holds",
            "use fairredis://, where each message is claimed, or a class without a Strategy",
        )


def tiers(facts: Facts) -> Iterator[Found]:
    """Find that tasks have tenants, and nobody chose their limit: it is that of a default tier."""
    settings, stored = facts.settings, facts.stored
    has_tenants = any(getattr(each, "tenant_source", None) for each in facts.app.tasks.values())
    if settings.tier_resolver is not None or not has_tenants:
        return
    if stored is None or stored.tenant_published or stored.tiers_source == "database":
        return
    default = settings.default_tier
    if default in chosen_tiers(facts.app.conf.get("fairness") or {}, facts.installation.environ):
        return
    number = settings.tiers[default].concurrency
    at_once = "1 task" if number == 1 else f"{number} tasks"
    enforces = settings.enforcement is Enforcement.ON
    subject = "every tenant runs" if enforces else "with enabled=true every tenant would run"
    without = "so that tenants only take turns" if facts.claims else "so that no tenant has a limit"
    yield advice(
        f"nobody chose the tier {default}, and there is no tier_resolver and no published tier",
        f"{subject} at most {at_once} at once",
        f"set tiers to {UNLIMITED!r}, {without}, or set tiers and tier_resolver for limits of "
        "your own",
    )


def tier_rates(facts: Facts) -> Iterator[Found]:
    """Find that gate: tasks above the rate or throttle of a tier come and go for a long time."""
    settings = facts.settings
    if facts.claims or settings.tier_on_limit == "wait":
        return
    for name, tier in sorted(settings.tiers.items()):
        for word in ("rate", "throttle"):
            number: Any = getattr(tier, word)
            # A throttle has a start in each of its spacings.
            starts = 1 if number is None or word == "rate" else number.limit
            if number is not None and number.period_seconds / starts > LONG_PERIOD_SECONDS:
                yield advice(
                    f"tier {name} has a {word} of {number}, and tier_on_limit is 'reschedule'",
                    "a task above it goes back to the broker with a countdown, and workers hold it "
                    "in their memory until then",
                    "set tier_on_limit to 'wait', so that it waits in Redis",
                )


def _is_other_redis(app: Any, settings: Settings) -> bool:
    given = settings.redis_url
    if given is None:
        return False
    return address_from_url(given.get_secret_value()) != address_from_broker(app)


def _prioritised(app: Any) -> list[str]:
    names = [
        f"task {name}"
        for name, task in sorted(app.tasks.items())
        if getattr(task, "priority", None) is not None
        and task.priority != app.conf.task_default_priority
    ]
    if app.conf.task_default_priority is not None:
        names.insert(0, "task_default_priority")
    return names
