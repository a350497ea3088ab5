"""The commands of ``celery -A APP fairness``: a noun, then a verb.

Celery loads this module for each ``celery`` command, so it imports only click. The answer goes to
stdout, problems and notes go to stderr.

==== ==========================================================================================
0    success
1    ``check`` found something; a key, a task or a tenant's tier is unknown; ``task cancel``
     found the task running
2    wrong usage or settings
69   Redis does not answer
==== ==========================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness
    from celery_fairness.control.event_types import Event
    from celery_fairness.control.ojs_views import Inspection
    from celery_fairness.limiter.types import KeyStops

FOUND = 1
USAGE = 2
#: EX_UNAVAILABLE of sysexits.h, as Celery's own commands.
AWAY = 69

Shown = tuple[Any, list[str], int]
Command = TypeVar("Command", bound=Callable[..., Any])
#: The longest cool-down, in seconds.
DAY_SECONDS = 86_400
#: The options that are a number of tasks at once.
_COUNTS = {"concurrency", "global_limit", "local_limit"}
#: The JSON form of a value.
_dumped = methodcaller("model_dump", mode="json")


def _examples(*commands: str) -> Callable[[Command], Command]:
    """Add examples to a command's help; click keeps them on their own lines."""

    def with_examples(command: Command) -> Command:
        lines = "\n".join(f"  celery -A shop fairness {each}" for each in commands)
        command.__doc__ = f"{command.__doc__}\n\n\b\nExamples:\n{lines}"
        return command

    return with_examples


@click.group()
@_examples("status", "limit show api.stripe.com", "tenant tier 42 pro", "task explain 7f3c")
def fairness(**_: Any) -> None:
    """Look at limits, tenants, queues, tasks and events, and change them."""


@fairness.group("limit")
@_examples("limit list")
def limit_group(**_: Any) -> None:
    """Limits by key."""


@fairness.group("tenant")
@_examples("tenant show 42")
def tenant_group(**_: Any) -> None:
    """Tenants by id."""


@fairness.group("queue")
@_examples("queue list")
def queue_group(**_: Any) -> None:
    """Queues by name."""


@fairness.group("task")
@_examples("task explain 7f3c")
def task_group(**_: Any) -> None:
    """Tasks by id."""


@contextlib.contextmanager
def _exit_codes(context: click.Context) -> Iterator[None]:
    """End the command with the exit code of an error that its user can correct."""
    from celery_fairness.errors import LimiterUnavailable, NotFound, NotWired, SettingsError
    from celery_fairness.store.library import LibraryUnusable

    try:
        yield
        return
    except LimiterUnavailable as error:
        unusable = isinstance(error.__cause__, LibraryUnusable)
        problem = "has no function library" if unusable else "does not answer"
        problem, code = f"{error.address} {problem}: {error.problem}", AWAY
    except NotFound as error:
        problem, code = str(error), FOUND
    except NotWired as error:
        problem, code = f"{error}; and name the app: celery -A APP fairness …", USAGE
    except SettingsError as error:
        problem, code = str(error), USAGE
    click.echo(f"celery fairness: {problem}", err=True)
    context.exit(code)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn the error of an invalid argument into wrong usage."""
    from celery_fairness.errors import SettingsError, TenantInvalid

    try:
        yield
    except SettingsError:
        raise
    except (ValueError, TenantInvalid) as error:
        raise click.UsageError(str(error)) from None


def _looks(ask: Callable[..., Shown]) -> Callable[..., None]:
    """Make a command from a function that returns a value, its text, and the exit code."""

    @click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
    @click.pass_context
    @functools.wraps(ask)
    def command(context: click.Context, /, as_json: bool, **arguments: Any) -> None:
        from celery_fairness.app.fairness import Fairness
        from celery_fairness.cli.tables import event_line

        app = context.obj.app
        with _exit_codes(context):
            of = Fairness.of(app)
            # As a worker does at its start. It sets up Django, which a tier resolver may need, and
            # imports the modules with the tasks, which declare limits.
            app.loader.import_default_modules()
            with _usage_errors():
                value, lines, code = ask(of, **arguments)
            if isinstance(value, Iterator):
                for each in value:
                    click.echo(json.dumps(each, default=_dumped) if as_json else event_line(each))
                context.exit(code)
        if as_json:
            click.echo(json.dumps(value, indent=2, default=_dumped))
        else:
            # In colour only on a terminal, and not with --no-color.
            click.echo("\n".join(lines), color=False if context.obj.no_color else None)
        context.exit(code)

    return command


@fairness.command()
@_examples("status")
@_looks
def status(of: Fairness) -> Shown:
    """Show queues, who holds leases, tiers and counters."""
    from celery_fairness.cli.tables import status_lines

    found = of.stats.status()
    return found, status_lines(found), 0


# -- options that several commands have ------------------------------------------------------------


def _duration(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    from celery_fairness.util.durations import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _time(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    from celery_fairness.errors import got

    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        expected = "a time with its time zone such as 2026-11-25T12:00Z"
        raise click.BadParameter(f"expected {expected}, got: {got(text)}")
    return time


def _ends(command: Command) -> Command:
    """Add ``--for`` and ``--until``."""
    for_ = click.option("--for", "for_seconds", callback=_duration, help="How long: 90, 10m, PT2H.")
    until = click.option("--until", callback=_time, help="The end: 2026-11-25T12:00Z.")
    return for_(until(command))


_by = click.option("--by", help="Your name, shown with the change; default: your user's.")
_clear = click.option("--clear", is_flag=True, help="End what was set.")
_reason = click.option("--reason", default="", help="Why, for the log and the event.")


def _overrides(command: Command) -> Command:
    """Add the options that an override has beside its numbers."""
    reason = click.option("--reason", help="Why, for operators.")
    return _ends(reason(_by(_clear(command))))


_service = click.option("--service", help="The service, if the setting tier_scope is service.")
_concurrency = click.option("--concurrency", help="At once: a number, 0 pauses, or unlimited.")
_rate = click.option("--rate", help="Starts in a period: 100/PT1M, 100/m, or unlimited.")
_throttle = click.option("--throttle", help="The same, evenly spaced.")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were typed, with numbers as numbers and ``unlimited`` as None."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in _COUNTS & given.keys():
        given[name] = _count(name, given[name])
    for name in ("rate", "throttle"):
        if given.get(name) == "unlimited":
            given[name] = None
    return given


def _count(option: str, text: str) -> int | None:
    """Return a typed concurrency as a number; None is unlimited.

    Raises:
        UsageError: The text is no valid concurrency.
    """
    from celery_fairness.config.tiers import MAX_CONCURRENCY
    from celery_fairness.errors import got
    from celery_fairness.util.durations import parse_count

    number = parse_count(text, MAX_CONCURRENCY)
    if number is None and text != "unlimited":
        raise click.UsageError(
            f"{option}: expected a whole number from 0 (pause) to {MAX_CONCURRENCY}, "
            f"or unlimited, got: {got(text)}"
        )
    return number


def _signed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an override with its author in place of ``by``."""
    from celery_fairness.control.holding import person

    others = {name: value for name, value in options.items() if name != "by"}
    return {**others, "author": person(options.get("by"))}


def _note(hint: str) -> None:
    if hint:
        click.echo(f"celery fairness: note: {hint}", err=True)


def _inspected(found: Inspection) -> Shown:
    from celery_fairness.cli.show_limit import inspection_lines, inspection_plain

    code = 0 if found.known and not found.unknown else FOUND
    return inspection_plain(found), inspection_lines(found), code


def _overridden(found: Inspection, note: str) -> Shown:
    from celery_fairness.cli.show_limit import inspection_plain, overridden_lines

    _note(note)
    return inspection_plain(found), overridden_lines(found), 0


def _override_cleared(key: str, clear: Callable[[], bool], others: Mapping[str, Any]) -> Shown:
    """Clear an override, unless another option is given."""
    if others:
        raise click.UsageError("expected --clear alone, or numbers")
    cleared = clear()
    text = f"{key}: its numbers are its own again" if cleared else f"{key}: has no override"
    return {"key": key, "cleared": cleared}, [text], 0 if cleared else FOUND


def _stopped(stops: KeyStops, note: str) -> Shown:
    from celery_fairness.cli.tables import stops_lines

    _note(note)
    return stops, stops_lines(stops), 0


def _resumed(of: Fairness, stops: KeyStops) -> Shown:
    from celery_fairness.cli.hints import resumed_lines

    return stops, resumed_lines(of, stops), 0


# -- limit -----------------------------------------------------------------------------------------


@limit_group.command("list")
@_examples("limit list --page 2")
@click.option("--page", type=int, default=1, help="The number of the page, from 1.")
@click.option("--per-page", type=int, default=20, help="Keys on a page, 1 to 100.")
@_looks
def limit_list(of: Fairness, page: int, per_page: int) -> Shown:
    """List the known keys."""
    from celery_fairness.cli.show_limit import keys_lines, page_plain

    found = of.limits.list(page, per_page)
    unknown = any(each.unknown for each in found.items)
    return page_plain(found), keys_lines(found), FOUND if unknown else 0


@limit_group.command("show")
@_examples("limit show api.stripe.com", "limit show api.stripe.com --page 2")
@click.argument("key")
@click.option("--page", type=int, default=1, help="A hundred leases at a time, from 1.")
@_looks
def limit_show(of: Fairness, key: str, page: int) -> Shown:
    """Show what KEY holds, may hold and has waiting."""
    return _inspected(of.limits.inspect(key, page))


@limit_group.command("pause")
@_examples(
    "limit pause api.stripe.com --for 10m", "limit pause queue:mail --until 2026-11-25T12:00Z"
)
@click.argument("key")
@_ends
@_by
@_looks
def limit_pause(of: Fairness, key: str, by: str | None, **ends: Any) -> Shown:
    """Start nothing more under KEY; running tasks go on."""
    from celery_fairness.cli.hints import unused_key

    note = unused_key(of, key)
    return _stopped(of.limits.pause(key, by=by, **ends), note)


@limit_group.command("resume")
@_examples("limit resume api.stripe.com")
@click.argument("key")
@_by
@_looks
def limit_resume(of: Fairness, key: str, by: str | None) -> Shown:
    """End a pause of KEY."""
    return _resumed(of, of.limits.resume(key, by=by))


@limit_group.command("cool-down")
@_examples("limit cool-down api.stripe.com --for 90", "limit cool-down api.stripe.com --clear")
@click.argument("key")
@_ends
@_reason
@_clear
@_looks
def limit_cool_down(of: Fairness, key: str, reason: str, clear: bool, **ends: Any) -> Shown:
    """Start nothing under KEY for a time. A later call can only make it longer."""
    from celery_fairness.cli.hints import unused_key

    if len(_given({**ends, "clear": clear or None})) != 1:
        raise click.UsageError("expected --for DURATION, --until TIME or --clear")
    if clear:
        return _resumed(of, of.limits.clear_cool_down(key))
    for_seconds = ends["for_seconds"]
    if for_seconds is not None and not 1 <= for_seconds <= DAY_SECONDS:
        raise click.UsageError(f"--for: expected 1 to {DAY_SECONDS} seconds")
    note = unused_key(of, key)
    return _stopped(of.limits.cool_down(key, reason=reason, **ends), note)


@limit_group.command("override")
@_examples(
    "limit override api.stripe.com --rate 10/m --for 2h --reason incident",
    "limit override api.stripe.com --clear",
)
@click.argument("key")
@_concurrency
@_rate
@_throttle
@_overrides
@_looks
def limit_override(of: Fairness, key: str, clear: bool, **options: Any) -> Shown:
    """Replace the numbers of KEY, for a time or until they are cleared."""
    from celery_fairness.cli.hints import unused_key

    given = _given(options)
    if clear:
        return _override_cleared(key, partial(of.limits.clear_override, key), given)
    note = unused_key(of, key)
    return _overridden(of.limits.override(key, **_signed(given)), note)


# -- tenant ----------------------------------------------------------------------------------------


@tenant_group.command("show")
@_examples("tenant show 42")
@click.argument("tenant")
@_service
@_looks
def tenant_show(of: Fairness, tenant: str, service: str | None) -> Shown:
    """Show what TENANT holds, may hold and has waiting."""
    return _inspected(of.tenants.inspect(tenant, service))


@tenant_group.command("pause")
@_examples("tenant pause 42 --for 10m")
@click.argument("tenant")
@_ends
@_by
@_looks
def tenant_pause(of: Fairness, tenant: str, by: str | None, **ends: Any) -> Shown:
    """Start nothing more of TENANT; running tasks go on."""
    from celery_fairness.cli.hints import unused_tenant

    note = unused_tenant(of, tenant)
    return _stopped(of.tenants.pause(tenant, by=by, **ends), note)


@tenant_group.command("resume")
@_examples("tenant resume 42")
@click.argument("tenant")
@_by
@_looks
def tenant_resume(of: Fairness, tenant: str, by: str | None) -> Shown:
    """End a pause of TENANT."""
    return _resumed(of, of.tenants.resume(tenant, by=by))


@tenant_group.command("override")
@_examples(
    "tenant override 42 --concurrency 10 --for 1h --reason import", "tenant override 42 --clear"
)
@click.argument("tenant")
@_concurrency
@_service
@_overrides
@_looks
def tenant_override(
    of: Fairness, tenant: str, service: str | None, clear: bool, **options: Any
) -> Shown:
    """Replace how many tasks of TENANT may run at once, for a time or until it is cleared."""
    from celery_fairness.cli.hints import unused_tenant

    given = _given(options)
    if clear:
        cleared = partial(of.tenants.clear_override, tenant, service)
        return _override_cleared(f"tenant:{tenant}", cleared, given)
    if "concurrency" not in given:
        raise click.UsageError("expected --concurrency N, or --clear alone")
    note = unused_tenant(of, tenant)
    return _overridden(of.tenants.override(tenant, service=service, **_signed(given)), note)


@tenant_group.command("tier")
@_examples("tenant tier 42", "tenant tier 42 pro --concurrency 5", "tenant tier 42 --clear")
@click.argument("tenant")
@click.argument("name", required=False)
@click.option("--concurrency", help="The tenant's own number, instead of its tier's.")
@_clear
@_looks
def tenant_tier(
    of: Fairness, tenant: str, name: str | None, concurrency: str | None, clear: bool
) -> Shown:
    """Show the tier of TENANT, or publish that it is NAME."""
    from celery_fairness.cli.hints import short_tier, typed_as_key, unused_tenant
    from celery_fairness.cli.show_limit import inspection_plain, limit_lines

    if not tenant:
        raise click.UsageError("TENANT: expected a tenant such as 42, got: ''")
    if (clear and name is not None) or (concurrency is not None and name is None):
        raise click.UsageError("expected TENANT, TENANT NAME [--concurrency N], or TENANT --clear")
    if name is not None:
        published = of.tenants.set_tier(tenant, name, **_given({"concurrency": concurrency}))
        _note(typed_as_key(tenant))
        _note(short_tier(published))
    elif clear:
        of.tenants.clear_tier(tenant)
        _note(typed_as_key(tenant))
    else:
        _note(unused_tenant(of, tenant))
    found = of.tenants.inspect(tenant)
    return inspection_plain(found), limit_lines(found), FOUND if found.unknown else 0


@tenant_group.command("purge")
@_examples("tenant purge 42")
@click.argument("tenant")
@_looks
def tenant_purge(of: Fairness, tenant: str) -> Shown:
    """Cancel all waiting tasks of TENANT; running tasks go on."""
    from celery_fairness.cli.hints import unused_tenant
    from celery_fairness.cli.tables import purged_lines

    found = of.tenants.purge(tenant)
    _note("" if found.cancelled else unused_tenant(of, tenant))
    return found, purged_lines(found), 0


# -- queue -----------------------------------------------------------------------------------------


@queue_group.command("list")
@_examples("queue list")
@_looks
def queue_list(of: Fairness) -> Shown:
    """List the queues and their limits."""
    from celery_fairness.cli.tables import queues_lines

    found = of.queues.list()
    return found, queues_lines(found), 0


@queue_group.command("show")
@_examples("queue show mail")
@click.argument("queue")
@_looks
def queue_show(of: Fairness, queue: str) -> Shown:
    """Show what waits in QUEUE, and its limit."""
    from celery_fairness.cli.tables import queue_lines

    found = of.queues.inspect(queue)
    return found, queue_lines(found), 0


@queue_group.command("limit")
@_examples("queue limit mail --global-limit 20 --rate 100/m", "queue limit mail --clear")
@click.argument("queue")
@click.option("--global-limit", help="At once in all workers: a number, 0 pauses, or unlimited.")
@click.option("--local-limit", help="At once in one worker, likewise.")
@_rate
@_throttle
@click.option("--on-limit", help="A task above it: wait, reschedule or drop.")
@click.option("--clear", is_flag=True, help="End what was set: the settings' numbers hold again.")
@_looks
def queue_limit(of: Fairness, queue: str, clear: bool, **numbers: str | None) -> Shown:
    """Set the limit of QUEUE; numbers that are not given are unlimited."""
    from celery_fairness.cli.tables import queue_limit_lines

    given = _given(numbers)
    if clear == bool(given):
        raise click.UsageError("expected numbers, or --clear alone")
    if clear:
        ended = of.queues.clear_limit(queue)
        text = "its numbers are those of the settings again" if ended else "nothing was set"
        return {"queue": queue, "cleared": ended}, [f"{queue}: {text}"], 0 if ended else FOUND
    found = of.queues.set_limit(queue, **given)
    return found, queue_limit_lines(found), 0


# -- task ------------------------------------------------------------------------------------------


@task_group.command("explain")
@_examples("task explain 7f3c")
@click.argument("task", metavar="ID")
@_looks
def task_explain(of: Fairness, task: str) -> Shown:
    """Show where the task ID is, and why it does not start."""
    from celery_fairness.cli.show_task import explanation_lines

    found = of.tasks.explain(task)
    return found, explanation_lines(found), 0


@task_group.command("cancel")
@_examples("task cancel 7f3c")
@click.argument("task", metavar="ID")
@_looks
def task_cancel(of: Fairness, task: str) -> Shown:
    """Cancel the task ID while it waits; a running one goes on."""
    from celery_fairness.cli.tables import cancelled_lines

    found = of.tasks.cancel(task)
    return found, cancelled_lines(found), FOUND if found.owner else 0


@task_group.command("dead")
@_examples("task dead --queue mail")
@click.option("--queue", help="Only those of this queue.")
@_looks
def task_dead(of: Fairness, queue: str | None) -> Shown:
    """List dead letters."""
    from celery_fairness.cli.tables import dead_lines

    letters = of.tasks.dead_letters(queue)
    return letters, dead_lines(letters), 0


@task_group.command("requeue")
@_examples("task requeue 7f3c")
@click.argument("task", metavar="ID")
@_looks
def task_requeue(of: Fairness, task: str) -> Shown:
    """Put the dead letter ID back, last in its lane."""
    from celery_fairness.cli.tables import requeued_lines

    back = of.tasks.requeue(task)
    return back, requeued_lines(back), 0


# -- events and the rest ---------------------------------------------------------------------------


@fairness.command()
@_examples("events --last 20", "events --follow --types rate_limit.dropped")
@click.option("--last", type=click.IntRange(1, 1000), help="How many of the newest; default 100.")
@click.option("--after", help="The id of an event: those after it, the oldest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), help="How many after --after at most; default 100."
)
@click.option("--types", help="Only these, with commas, such as rate_limit.dropped.")
@click.option("--follow", is_flag=True, help="Go on with new ones; from now on, or --after.")
@_looks
def events(
    of: Fairness,
    last: int | None,
    after: str | None,
    limit: int | None,
    types: str | None,
    follow: bool,
) -> Shown:
    """Show the newest events, or those after --after; the oldest of them first."""
    from celery_fairness.cli.tables import page_lines

    wanted = [each.strip() for each in types.split(",")] if types else None
    if last is not None and (after is not None or follow):
        raise click.UsageError("expected --last, or --after and --follow")
    if follow:
        return _until_interrupted(of.events.follow(after, wanted)), [], 0
    if after is not None:
        page = of.events.read(after, wanted, limit or 100)
        return page, page_lines(page, f"there are more: --after {page.cursor}"), 0
    if limit is not None:
        raise click.UsageError("--limit: expected with --after; the newest are --last N")
    newest = of.events.read(types=wanted, last=last or 100)
    return newest, page_lines(newest, "there are older ones: --last N shows more"), 0


def _until_interrupted(events: Iterator[Event]) -> Iterator[Event]:
    with contextlib.suppress(KeyboardInterrupt):
        yield from events


@fairness.command(context_settings={"allow_interspersed_args": False})
@_examples("worker mail --loglevel INFO")
@click.argument("service")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY WORKER OPTIONS]...")
@click.pass_context
def worker(context: click.Context, /, service: str, options: tuple[str, ...], **_: Any) -> None:
    """Start the workers of SERVICE, with OPTIONS of celery worker; its queues share the slots."""
    from celery_fairness.cli.worker import run

    with _exit_codes(context):
        context.exit(run(context, service, options))


@fairness.command()
@_examples("library", "library --delete cf_1a2b3c4d5e6f")
@click.option("--delete", "library", help="The name of one to delete.")
@_looks
def library(_: Fairness, library: str | None) -> Shown:
    """Show the function libraries of the server: each version of this package loads its own.

    Nothing deletes an old one by itself. Other installations may use the server: their last
    use is not shown here. A worker that needs a deleted library loads it again.
    """
    from celery_fairness.cli.tables import libraries_lines
    from celery_fairness.control.libraries import delete_library, libraries
    from celery_fairness.limiter.redis import RedisLimiter
    from celery_fairness.wiring import wired

    limiter = wired(click.get_current_context().obj.app).limiter
    if not isinstance(limiter, RedisLimiter):
        raise click.UsageError("the limiter of this app has no server")
    if library is not None:
        delete_library(limiter, library)
        return {"deleted": library}, [f"deleted {library}"], 0
    found = libraries(limiter)
    return found, libraries_lines(found), 0


@fairness.command()
@click.option("--repair", is_flag=True, help="Repair what needs no guess, and show what was done.")
@_examples("check", "check --repair")
@_looks
def check(of: Fairness, repair: bool) -> Shown:
    """Compare the tables in Redis with each other, while workers go on.

    The exit code is 0 if nothing is left to do, and 1 if a finding is.
    """
    from celery_fairness.cli.tables import check_lines

    progress = _show_keys if sys.stderr.isatty() else None
    try:
        found = of.check(repair=repair, progress=progress)
    finally:
        if progress:
            click.echo(err=True)
    left = any(each.advice for each in found.findings)
    return found, check_lines(found), FOUND if left else 0


def _show_keys(keys: int) -> None:
    click.echo(f"\r{keys} keys compared", nl=False, err=True)
