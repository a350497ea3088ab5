"""``celery -A APP fairness worker SERVICE``: the workers of one service, its places shared out.

Where the broker claims fairly it is one Celery worker whose claims obey the shares. On other
brokers nothing but a pool of its own keeps places for a queue: there it is one worker for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise

import click
from celery.bin.worker import worker as celery_worker
from celery.concurrency.solo import TaskPool as SoloPool
from click.core import ParameterSource

from celery_fairness.app.fairness import Fairness
from celery_fairness.cli import worker_group
from celery_fairness.config.worker_shares import Service, Shares, shares_of
from celery_fairness.errors import SettingsError, suggestion
from celery_fairness.message.task_options import service_of
from celery_fairness.wiring import wired


def run(context: click.Context, service: str, options: Sequence[str]) -> int:
    """Run the workers of a service until they end; return the exit code.

    Args:
        context: Of the command.
        service: Its name.
        options: Of ``celery worker``.

    Raises:
        click.UsageError: An option that goes against shares, or a service that nobody knows.
        SettingsError: Numbers that do not go into the pool.
    """
    app = context.obj.app
    of, parts = Fairness.of(app), wired(app)
    app.loader.import_default_modules()
    app.finalize()
    known = {name for task in app.tasks.values() if (name := service_of(task))}
    known |= set(of.settings.services)
    if service not in known:
        names = ", ".join(sorted(known)) or "none: no task says service=…"
        raise click.UsageError(
            f"SERVICE: expected one of the app's services ({names}), got: {service!r}"
            f"{suggestion(service, known)}"
        )
    parsed = _parse(context, options)
    for name, option in (("queues", "-Q"), ("exclude_queues", "-X")):
        if parsed.params[name]:
            raise click.UsageError(f"{option}: the queues are those of the service {service}")
    shares = shares_of(
        service,
        of.settings.services.get(service, Service()),
        parts.environ,
        _pool_of(parsed),
        os.cpu_count() or 1,
        lends=parts.claims,
    )
    for warning in shares.warnings:
        click.echo(f"celery fairness: warning: {warning}", err=True)
    click.echo(f"celery fairness: {_told(service, shares)}", err=True)
    if not parts.claims:
        _check_pools(parsed, shares)
        return worker_group.run(_commands(options, shares))
    _check_prefetch(parsed)
    parts.shares = shares
    ours = ["-Q", ",".join(shares.queues)]
    if not _is_given(parsed, "hostname"):
        ours += ["-n", f"{service}@%h"]
    if not parsed.params["autoscale"]:
        ours += ["-c", str(shares.pool)]
    celery_worker.invoke(_parse(context, [*options, *ours]))
    return 0


def _parse(context: click.Context, options: Sequence[str]) -> click.Context:
    return celery_worker.make_context("worker", list(options), parent=context.find_root())


def _is_given(parsed: click.Context, name: str) -> bool:
    return parsed.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _pool_of(parsed: click.Context) -> int | None:
    """Return how many places somebody said that the pool has."""
    if parsed.params["autoscale"]:
        return int(max(parsed.params["autoscale"]))
    if issubclass(parsed.params["pool"], SoloPool):
        return 1
    said = parsed.params["concurrency"] or parsed.obj.app.conf.worker_concurrency
    return int(said) if said else None


def _told(service: str, shares: Shares) -> str:
    slots = ", ".join(f"{queue} {number}" for queue, number in shares.slots.items())
    lent = "idle slots are lent" if shares.borrow else "strict"
    return f"{service}: {shares.pool} slots: {slots} ({lent})"


def _check_prefetch(parsed: click.Context) -> None:
    """Reject a prefetch without a bound: the multiplier makes each share that much larger."""
    multiplier = int(parsed.params["prefetch_multiplier"])
    if multiplier < 1 and not parsed.params["disable_prefetch"]:
        raise SettingsError(
            "worker_prefetch_multiplier: expected 1 or more beside worker shares, because 0 is a "
            f"prefetch without a bound and no share would hold, got: {multiplier}; remove the "
            "setting, or start celery worker without shares"
        )


def _check_pools(parsed: click.Context, shares: Shares) -> None:
    """Refuse what cannot be had of several worker_group."""
    given = parsed.params
    several = "this broker needs a pool for each queue"
    if shares.borrow:
        raise SettingsError(
            f"shares: expected 'strict': {several}, and pools lend no slots; 'borrow' is for "
            "fairredis://"
        )
    problems = {
        "--autoscale": given["autoscale"],
        "--beat": given["beat"],
        "--detach": given["detach"],
        "--hostname": _is_given(parsed, "hostname"),
    }
    for option, is_given in problems.items():
        if is_given:
            raise click.UsageError(f"{option}: {several}; start celery worker or beat by itself")
    for option in ("pidfile", "statedb", "logfile"):
        path = given.get(option)
        if path and "%n" not in str(path) and _is_given(parsed, option):
            raise click.UsageError(
                f"--{option}: expected a path with %n, which is the queue's name: {several}, got: "
                f"{str(path)!r}"
            )
    workdir = parsed.find_root().params.get("workdir")
    if workdir and not os.path.isabs(workdir):
        raise click.UsageError(f"--workdir: expected an absolute path: {several}, got: {workdir!r}")


def _commands(options: Sequence[str], shares: Shares) -> dict[str, list[str]]:
    """Return by queue what to run: the options of ``celery`` itself are those that it was given."""
    words = sys.argv[1:]
    of_celery = words[: list(pairwise(words)).index(("fairness", "worker"))]
    return {
        queue: [
            *(sys.executable, "-m", "celery", *of_celery, "worker", *options),
            *("-Q", queue, "-n", f"{queue}@%h", "-c", str(shares.slots[queue])),
        ]
        for queue in shares.queues
    }
