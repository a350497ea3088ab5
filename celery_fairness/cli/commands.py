"""The commands. Celery loads them for every ``celery`` command: importing this imports only click.

Exit codes: 0 fine; 1 an audit found something, a key, a task or a tenant's tier is not known, or a
task runs that was to be cancelled; 2 wrong usage or settings; 69 Redis does not answer. What is
asked for goes to stdout, what went wrong to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness
    from celery_fairness.control.event_types import Event
    from celery_fairness.limiter.types import KeyStops

FOUND = 1
USAGE = 2
#: EX_UNAVAILABLE of sysexits.h, as Celery's own commands.
AWAY = 69

Shown = tuple[Any, list[str], int]
Changed = TypeVar("Changed")
#: The JSON form of a value.
_dumped = methodcaller("model_dump", mode="json")
#: What our commands take.
_OWN = {
    *("key", "seconds", "clear", "reason", "task", "tenant", "action", "queue"),
    *("page", "per_page", "name", "concurrency", "rate", "throttle", "author"),
    *("after", "types", "limit", "last", "follow"),
    *("global_limit", "local_limit", "on_limit", "by", "library"),
}


@click.group()
def fairness(**_: Any) -> None:
    """Look at tenants, queues, leases and events; stop keys of limits; cancel and requeue tasks."""


def _looks(ask: Callable[..., Shown]) -> Callable[..., None]:
    """Make a command of what returns a value, its text, and the exit code."""

    @click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
    @click.pass_context
    @functools.wraps(ask)
    def command(context: click.Context, /, as_json: bool, **arguments: Any) -> None:
        from celery_fairness.app.fairness import Fairness
        from celery_fairness.cli.tables import event_line
        from celery_fairness.errors import LimiterUnavailable, NotFound, NotWired, SettingsError

        # Celery puts its own options into every command where an app has some.
        own = {parameter.name for parameter in context.command.params} & _OWN
        arguments = {name: value for name, value in arguments.items() if name in own}
        app = context.obj.app
        try:
            of = Fairness.of(app)
            # As a worker starts: Django is set up, which a tier resolver may need, and the modules
            # are imported whose tasks declare limits.
            app.loader.import_default_modules()
            value, lines, code = ask(of, **arguments)
            if isinstance(value, Iterator):
                for each in value:
                    click.echo(json.dumps(each, default=_dumped) if as_json else event_line(each))
        except LimiterUnavailable as error:
            _fail(context, f"{error.address} does not answer: {error.problem}", AWAY)
        except NotFound as error:
            _fail(context, str(error), FOUND)
        except NotWired as error:
            _fail(context, f"{error}; and name the app: celery -A APP fairness …", USAGE)
        except SettingsError as error:
            _fail(context, str(error), USAGE)
        if isinstance(value, Iterator):
            context.exit(code)
        if as_json:
            click.echo(json.dumps(value, indent=2, default=_dumped))
        else:
            # A terminal has colours, unless celery was told --no-color; a file or pipe has none.
            click.echo("\n".join(lines), color=False if context.obj.no_color else None)
        context.exit(code)

    return command


def _fail(context: click.Context, problem: str, code: int) -> NoReturn:
    click.echo(f"celery fairness: {problem}", err=True)
    context.exit(code)


@fairness.command()
@_looks
def status(of: Fairness) -> Shown:
    """Queues, who holds leases, tiers, counts."""
    from celery_fairness.cli.tables import status_lines

    found = of.status()
    return found, status_lines(found), 0


@fairness.command("list")
@click.option("--page", type=int, default=1, help="Which, from 1.")
@click.option("--per-page", type=int, default=20, help="Keys of a page, 1 to 100.")
@_looks
def list_(of: Fairness, page: int, per_page: int) -> Shown:
    """The keys of which anything is known: what each may hold, holds and has waiting."""
    from celery_fairness.cli.show_limit import keys_lines, page_plain

    found = _done(lambda: of.list_limits(page, per_page))
    unknown = any(each.unknown for each in found.items)
    return page_plain(found), keys_lines(found), FOUND if unknown else 0


@fairness.command()
@click.argument("tenant")
@click.argument("name", required=False)
@click.option("--concurrency", help="A number of the tenant's own, or unlimited.")
@click.option("--clear", is_flag=True, help="Forget what was published of the tenant.")
@_looks
def tier(
    of: Fairness, tenant: str, name: str | None, concurrency: str | None, clear: bool
) -> Shown:
    """Show the tier of TENANT, or publish that it is NAME."""
    from celery_fairness.cli.hints import short_tier, typed_as_key, unused_tenant
    from celery_fairness.cli.show_limit import inspection_plain
    from celery_fairness.cli.tables import limit_lines
    from celery_fairness.config.tenants import NO_SERVICE

    if not tenant:
        raise click.UsageError("TENANT: expected a tenant such as 42, got: ''")
    if (clear and name is not None) or (concurrency is not None and name is None):
        raise click.UsageError("expected TENANT, TENANT NAME [--concurrency N], or TENANT --clear")
    if clear or name is not None:
        own = {} if concurrency is None else {"concurrency": _number("concurrency", concurrency)}
        published = _done(lambda: of.set_tier(tenant, name, **own))
        _note(typed_as_key(tenant))
        _note(short_tier(published))
    else:
        _note(unused_tenant(of, tenant))
    # Where each service counts apart, of its tasks without one: the tier is that of all.
    service = f":{NO_SERVICE}" if of.settings.tier_scope == "service" else ""
    found = _done(lambda: of.inspect(f"tenant:{tenant}{service}"))
    return inspection_plain(found), limit_lines(found), FOUND if found.unknown else 0


def _number(option: str, text: str) -> int | None:
    """Return a concurrency as it was typed; None: unlimited.

    Raises:
        UsageError: The text is no such number.
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


@fairness.command()
@click.argument("key")
@_looks
def inspect(of: Fairness, key: str) -> Shown:
    """What KEY holds and has waiting, such as tenant:42 or api.stripe.com."""
    from celery_fairness.cli.show_limit import inspection_lines, inspection_plain

    try:
        found = of.inspect(key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    code = 0 if found.known and not found.unknown else FOUND
    return inspection_plain(found), inspection_lines(found), code


@fairness.command()
@click.argument("key")
@click.option("--for", "seconds", type=float, help="Seconds after which it ends by itself.")
@click.option("--by", help="Your name, to be shown with the pause; without it your user's.")
@_looks
def pause(of: Fairness, key: str, seconds: float | None, by: str | None) -> Shown:
    """Let nothing more start under KEY: api.stripe.com, or tenant:42; what runs runs on."""
    return _stopped(of, key, lambda: of.pause(key=key, expires_in=seconds, by=by))


@fairness.command()
@click.argument("key")
@click.option("--by", help="Your name, for the event; without it your user's.")
@_looks
def resume(of: Fairness, key: str, by: str | None) -> Shown:
    """End a pause of KEY."""
    return _resumed(of, lambda: of.resume(key=key, by=by))


@fairness.command()
@click.argument("key")
@click.argument("seconds", type=click.FloatRange(1, 86_400), required=False)
@click.option("--clear", is_flag=True, help="End the cool-down.")
@click.option("--reason", default="", help="For the log.")
@_looks
def cool_down(of: Fairness, key: str, seconds: float | None, clear: bool, reason: str) -> Shown:
    """Let nothing start under KEY for SECONDS; a later call may make it longer, never shorter."""
    if clear == (seconds is not None):
        raise click.UsageError("expected SECONDS, from 1 to 86400, or --clear")
    if seconds is None:
        return _resumed(of, lambda: of.clear_cool_down(key))
    return _stopped(of, key, lambda: of.cool_down_for(key, seconds, reason))


@fairness.command()
@click.argument("key")
@click.option("--concurrency", help="At once: a number, 0 pauses, or unlimited.")
@click.option("--rate", help="Starts in a period, such as 100/PT1M, or unlimited.")
@click.option("--throttle", help="The same, evenly spaced.")
@click.option("--for", "seconds", type=float, help="Seconds after which it ends by itself.")
@click.option("--reason", help="Why, for whoever looks at it.")
@click.option("--by", "--author", "author", help="Your name; without it your user's.")
@click.option("--clear", is_flag=True, help="End the override.")
@_looks
def override(
    of: Fairness, key: str, seconds: float | None, clear: bool, **said: str | None
) -> Shown:
    """Put numbers in the place of those of KEY: api.stripe.com, or tenant:42."""
    from celery_fairness.cli.hints import unused_key
    from celery_fairness.cli.show_limit import inspection_plain, overridden_lines
    from celery_fairness.control.holding import person

    given: dict[str, Any] = {name: text for name, text in said.items() if text is not None}
    if clear:
        if given or seconds is not None:
            raise click.UsageError("expected --clear alone, or numbers")
        cleared = _done(lambda: of.clear_override(key))
        return {"key": key, "cleared": cleared}, [_cleared(key, cleared)], 0 if cleared else FOUND
    for name in ("rate", "throttle"):
        if given.get(name) == "unlimited":
            given[name] = None
    if "concurrency" in given:
        given["concurrency"] = _number("concurrency", given["concurrency"])
    unused = unused_key(of, key)
    given["author"] = _done(lambda: person(given.get("author")))
    found = _done(lambda: of.override(key, expires_in=seconds, **given))
    _note(unused)
    return inspection_plain(found), overridden_lines(found), 0


@fairness.command()
@click.argument("queue")
@click.option("--global-limit", help="At once in all workers: a number, 0 pauses, or unlimited.")
@click.option("--local-limit", help="At once in one worker, likewise.")
@click.option("--rate", help="Starts in a period, such as 100/PT1M, or unlimited.")
@click.option("--throttle", help="The same, evenly spaced.")
@click.option("--on-limit", help="What becomes of a task over it: wait, reschedule or drop.")
@click.option("--clear", is_flag=True, help="End what was set: the settings' numbers hold again.")
@_looks
def queue_limit(of: Fairness, queue: str, clear: bool, **said: str | None) -> Shown:
    """Show the limit of QUEUE, or set its numbers; those that are not given are unlimited."""
    from celery_fairness.cli.tables import queue_limit_lines

    given: dict[str, Any] = {name: text for name, text in said.items() if text is not None}
    if clear and given:
        raise click.UsageError("expected --clear alone, or numbers")
    if clear:
        ended = _done(lambda: of.clear_queue_limit(queue))
        text = "its numbers are those of the settings again" if ended else "nothing was set"
        return {"queue": queue, "cleared": ended}, [f"{queue}: {text}"], 0 if ended else FOUND
    for name in ("rate", "throttle"):
        if given.get(name) == "unlimited":
            given[name] = None
    for name in ("global_limit", "local_limit"):
        if name in given:
            given[name] = _number(name, given[name])
    change = (
        (lambda: of.set_queue_limit(queue, **given)) if given else lambda: of.queue_limit(queue)
    )
    found = _done(change)
    return found, queue_limit_lines(found), 0


def _cleared(key: str, cleared: bool) -> str:
    return f"{key}: its numbers are its own again" if cleared else f"{key}: has no override"


def _stopped(of: Fairness, key: str, change: Callable[[], KeyStops]) -> Shown:
    from celery_fairness.cli.hints import unused_key
    from celery_fairness.cli.tables import stops_lines

    unused = unused_key(of, key)
    stops = _done(change)
    _note(unused)
    return stops, stops_lines(stops), 0


def _resumed(of: Fairness, change: Callable[[], KeyStops]) -> Shown:
    from celery_fairness.cli.hints import resumed_lines

    stops = _done(change)
    return stops, resumed_lines(of, stops), 0


def _note(hint: str) -> None:
    if hint:
        click.echo(f"celery fairness: note: {hint}", err=True)


def _done(change: Callable[[], Changed]) -> Changed:
    from celery_fairness.errors import PolicyInvalid, TenantInvalid

    try:
        return change()
    except (ValueError, PolicyInvalid, TenantInvalid) as error:
        raise click.UsageError(str(error)) from None


@fairness.command()
@click.argument("task")
@_looks
def explain(of: Fairness, task: str) -> Shown:
    """Where the task of the id TASK is, and what keeps it from starting."""
    from celery_fairness.cli.show_task import explanation_lines

    found = _done(lambda: of.explain(task))
    return found, explanation_lines(found), 0


@fairness.command()
@click.argument("task")
@_looks
def cancel(of: Fairness, task: str) -> Shown:
    """Cancel the task of the id TASK while it waits; one that runs is left running."""
    from celery_fairness.cli.tables import cancelled_lines

    found = _done(lambda: of.cancel(task))
    return found, cancelled_lines(found), FOUND if found.owner else 0


@fairness.command()
@click.argument("tenant")
@_looks
def purge(of: Fairness, tenant: str) -> Shown:
    """Cancel all that waits of TENANT, such as 42; what runs runs on."""
    from celery_fairness.cli.hints import unused_tenant
    from celery_fairness.cli.tables import purged_lines

    found = _done(lambda: of.purge_tenant(tenant))
    _note("" if found.cancelled else unused_tenant(of, tenant))
    return found, purged_lines(found), 0


@fairness.command()
@click.argument("action", type=click.Choice(["requeue"]), required=False)
@click.argument("task", required=False)
@click.option("--queue", help="Show those of this queue alone.")
@_looks
def dead(of: Fairness, action: str | None, task: str | None, queue: str | None) -> Shown:
    """Show dead letters; or: dead requeue TASK, to let the one of that id wait again."""
    from celery_fairness.cli.tables import dead_lines, requeued_lines

    if (action is None) != (task is None) or (action and queue):
        raise click.UsageError("expected nothing, --queue QUEUE, or: requeue TASK")
    if task is not None:
        back = _done(lambda: of.requeue(task))
        return back, requeued_lines(back), 0
    letters = _done(lambda: of.dead_letters(queue))
    return letters, dead_lines(letters), 0


@fairness.command()
@click.option("--last", type=click.IntRange(1, 1000), help="So many of the newest; 100.")
@click.option("--after", help="The id of an event: those behind it, the oldest first.")
@click.option("--limit", type=click.IntRange(1, 1000), help="Most events behind --after; 100.")
@click.option("--types", help="Only these, with commas, such as rate_limit.dropped.")
@click.option("--follow", is_flag=True, help="Go on with those to come; from now on, or --after.")
@_looks
def events(
    of: Fairness,
    last: int | None,
    after: str | None,
    limit: int | None,
    types: str | None,
    follow: bool,
) -> Shown:
    """What happened: the newest events, or those behind --after; the oldest of them first."""
    from celery_fairness.cli.tables import last_lines, page_lines

    asked = [each.strip() for each in types.split(",")] if types else None
    if last is not None and (after is not None or follow):
        raise click.UsageError("expected --last, or --after and --follow")
    if follow:
        return _until_interrupted(_done(lambda: of.follow(after, asked))), [], 0
    if after is not None:
        page = _done(lambda: of.events(after, asked, limit or 100))
        return page, page_lines(page), 0
    if limit is not None:
        raise click.UsageError("--limit: expected with --after; the newest are --last N")
    newest = _done(lambda: of.events(types=asked, last=last or 100))
    return newest, last_lines(newest), 0


def _until_interrupted(events: Iterator[Event]) -> Iterator[Event]:
    with contextlib.suppress(KeyboardInterrupt):
        yield from events


@fairness.command(context_settings={"allow_interspersed_args": False})
@click.argument("service")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY WORKER OPTIONS]...")
@click.pass_context
def worker(context: click.Context, /, service: str, options: tuple[str, ...], **_: Any) -> None:
    """Start the workers of SERVICE, with OPTIONS of celery worker; its queues share the places."""
    from celery_fairness.cli.worker import run
    from celery_fairness.errors import NotWired, SettingsError

    try:
        code = run(context, service, options)
    except NotWired as error:
        _fail(context, f"{error}; and name the app: celery -A APP fairness …", USAGE)
    except SettingsError as error:
        _fail(context, str(error), USAGE)
    context.exit(code)


@fairness.command("library")
@click.option("--delete", "library", help="The name of one to delete.")
@_looks
def library_(of: Fairness, library: str | None) -> Shown:
    """The function libraries of the server: each version of this package loads its own.

    Nothing deletes an old one by itself. Other installations may use the server: their last use is
    not shown here. A worker that needs a deleted library loads it again.
    """
    from celery_fairness.cli.tables import libraries_lines
    from celery_fairness.control.libraries import delete_library, libraries
    from celery_fairness.limiter.redis import RedisLimiter

    if not isinstance(of.limiter, RedisLimiter):
        raise click.UsageError("the limiter of this app has no server")
    limiter = of.limiter
    if library is not None:
        _done(lambda: delete_library(limiter, library))
        return {"deleted": library}, [f"deleted {library}"], 0
    found = libraries(limiter)
    return found, libraries_lines(found), 0


@fairness.command()
@_looks
def audit(of: Fairness) -> Shown:
    """Compare counts with what runs and waits; list every difference."""
    from celery_fairness.cli.tables import audit_lines

    found = of.audit()
    return found, audit_lines(found), FOUND if found.findings else 0
