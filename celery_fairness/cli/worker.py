"""``celery -A APP fairness worker SERVICE``: starts workers that share slots among its queues.

On a broker that claims fairly this is one Celery worker, which keeps the shares when it claims. On
other brokers only a pool of its own reserves slots for a queue, so each queue has its own worker.
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
    """Run the workers of a service until they end, with options of ``celery worker``.

    Returns:
        The exit code.

    Raises:
        click.UsageError: An option contradicts the shares, or the app has no such service.
        SettingsError: The shares do not fit into the pool.
    """
    app = context.obj.app
    of, parts = Fairness.of(app), wired(app)
    app.loader.import_default_modules()
    app.finalize()
    known = {name for task in app.tasks.values() if (name := service_of(task))}
    known |= set(of.settings.services)
    if service not in known:
        names = ", ".join(sorted(known)) or "none: no task has service=…"
        raise click.UsageError(
            f"SERVICE: expected one of the app's services ({names}), got: {service!r}"
            f"{suggestion(service, known)}"
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
        lends=parts.claims_fairly,
    )
    for warning in shares.warnings:
        click.echo(f"celery fairness: warning: {warning}", err=True)
    click.echo(f"celery fairness: {_shares_text(service, shares)}", err=True)
    if not parts.claims_fairly:
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
    """Return the number of slots that options or settings give the pool; None if they do not."""
    if parsed.params["autoscale"]:
        return int(max(parsed.params["autoscale"]))
    if issubclass(parsed.params["pool"], SoloPool):
        return 1
    number = parsed.params["concurrency"] or parsed.obj.app.conf.worker_concurrency
    return int(number) if number else None


def _shares_text(service: str, shares: Shares) -> str:
    slots = ", ".join(f"{queue} {number}" for queue, number in shares.slots.items())
    lent = "idle slots are lent" if shares.borrow else "strict"
    return f"{service}: {shares.pool} slots: {slots} ({lent})"


def _check_prefetch(parsed: click.Context) -> None:
    """Reject a prefetch without a bound, because the multiplier multiplies each share."""
    multiplier = int(parsed.params["prefetch_multiplier"])
    if multiplier < 1 and not parsed.params["disable_prefetch"]:
        raise SettingsError(
            "worker_prefetch_multiplier: expected 1 or more beside worker shares, because 0 is a "
            f"prefetch without a bound and no share would hold, got: {multiplier}; remove the "
            "setting, or start celery worker without shares"
        )


def _check_pools(parsed: click.Context, shares: Shares) -> None:
    """Reject options and settings that several workers cannot share."""
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
    """Return the command line for each queue, with the present options of ``celery`` itself."""
    words = sys.argv[1:]
    of_celery = words[: list(pairwise(words)).index(("fairness", "worker"))]
    return {
        queue: [
            *(sys.executable, "-m", "celery", *of_celery, "worker", *options),
            *("-Q", queue, "-n", f"{queue}@%h", "-c", str(shares.slots[queue])),
        ]
        for queue in shares.queues
    }
