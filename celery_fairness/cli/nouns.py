"""The commands of ``celery -A APP fairness``: a noun, then a verb.

The answer goes to stdout, problems and notes go to stderr.

==== ==========================================================================================
0    success
1    ``check`` or ``doctor`` found something; a key, a task or a tenant's tier is unknown;
     ``task cancel`` found the task running
2    wrong usage or settings
69   Redis does not answer
==== ==========================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from inspect import cleandoc
from typing import Any, TypeVar

import click

from celery_fairness.app.fairness import Fairness
from celery_fairness.cli import completion, hints, top
from celery_fairness.cli.answers import (
    Answer,
    ClearedOverride,
    ClearedQueueLimit,
    DeletedLibrary,
    KeyPage,
    Shown,
    Verb,
    verbs,
)
from celery_fairness.cli.commands import Suggesting
from celery_fairness.cli.worker import run
from celery_fairness.config.limit_spec import ACTIONS
from celery_fairness.config.numbers import (
    PARTITION,
    columns_of,
    numbers_of,
    with_partition,
)
from celery_fairness.control.health.doctor.symptoms import Diagnosis
from celery_fairness.control.health.event_types import Event, EventPage
from celery_fairness.control.health.observed import TENANTS_AT_MOST
from celery_fairness.control.health.views import Check, Observed, Status
from celery_fairness.control.installation.libraries import LibraryStatus, delete_library, libraries
from celery_fairness.control.installation.uninstall import Leftovers, uninstall
from celery_fairness.control.key.stops import person
from celery_fairness.control.key.views import ChangedHolds, Inspection, KeyFacts
from celery_fairness.control.queue.views import QueueLimit, QueueState
from celery_fairness.control.task.task_list import CANCELLED_STATES, LIST_LENGTH, LONGEST_LIST
from celery_fairness.control.task.views import (
    STATES,
    Cancelled,
    DeadLetterPage,
    Explanation,
    Requeued,
    TaskPage,
    TasksCancelled,
)
from celery_fairness.control.tenant.views import Purged
from celery_fairness.errors import (
    LimiterUnavailable,
    NotFound,
    NotWired,
    ProblemsError,
    SettingsError,
    TenantInvalid,
    got,
    suggestion,
)
from celery_fairness.exporter import expect_client
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.texts.checks import check_lines, doctor_lines
from celery_fairness.texts.events import event_line, page_lines
from celery_fairness.texts.format import count, quoted
from celery_fairness.texts.installation import leftovers_lines, libraries_lines
from celery_fairness.texts.keys import (
    holds_lines,
    inspection_lines,
    keys_lines,
    limit_lines,
    overridden_lines,
)
from celery_fairness.texts.observed import observed_lines
from celery_fairness.texts.queues import (
    moved_here_lines,
    moved_lines,
    queue_limit_lines,
    queue_lines,
    queues_lines,
)
from celery_fairness.texts.status import status_lines
from celery_fairness.texts.tasks import dead_lines, explanation_lines, list_lines
from celery_fairness.transport.migration import Moved, migrate
from celery_fairness.transport.other_installation import Move, MovedHere, open_other
from celery_fairness.util.durations import parse_duration
from celery_fairness.util.printable import printable
from celery_fairness.wiring import wired

FOUND = 1
USAGE = 2
#: EX_UNAVAILABLE of sysexits.h, as Celery's own commands.
AWAY = 69

Command = TypeVar("Command", bound=Callable[..., Any])
#: The longest cool-down, in seconds.
DAY_SECONDS = 86_400
#: The shortest time between two looks of ``top``, in seconds.
SHORTEST_LOOK_SECONDS = 0.5


def _help(text: str | None, name: str, *examples: str) -> str:
    """Return a command's help with examples; click keeps them on their own lines.

    Each example is the words after the command's name.
    """
    lines = (f"  celery -A shop fairness {name} {each}".rstrip() for each in examples or ("",))
    return "\n".join((cleandoc(text or ""), "\n\b\nExamples:", *lines))


limit_group = Suggesting("limit", help=_help("Limits by key.", "limit list"))
tenant_group = Suggesting("tenant", help=_help("Tenants by id.", "tenant show 42"))
queue_group = Suggesting("queue", help=_help("Queues by name.", "queue list"))
task_group = Suggesting("task", help=_help("Tasks.", "task list"))
nouns = Suggesting(commands=[limit_group, tenant_group, queue_group, task_group])


@contextlib.contextmanager
def _exit_codes(context: click.Context) -> Iterator[None]:
    """End the command with the exit code of an error that its user can correct."""
    try:
        yield
        return
    except LimiterUnavailable as error:
        unusable = isinstance(error.__cause__, LibraryUnusable)
        problem = "has no function library" if unusable else error.what
        problem, code = f"{error.address} {problem}: {error.problem}", AWAY
    except NotFound as error:
        problem, code = f"{error}{_similar(error)}", FOUND
    except NotWired as error:
        problem, code = f"{error}; and name the app: celery -A APP fairness …", USAGE
    except SettingsError as error:
        problem, code = str(error), USAGE
    click.echo(f"celery fairness: {problem}", err=True)
    context.exit(code)


def _similar(error: NotFound) -> str:
    if "did you mean" in str(error):
        return ""
    # Redis may go away between two calls, and the error itself is what matters.
    with contextlib.suppress(LimiterUnavailable):
        return hints.similar(error.what, error.name)
    return ""


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn the error of an invalid argument into wrong usage."""
    try:
        yield
    except SettingsError:
        raise
    except (ValueError, TenantInvalid) as error:
        raise click.UsageError(str(error)) from None


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int], None] | None]:
    """Give a function that shows a number on a terminal; without a terminal, None."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda number: click.echo(f"\r{number} {what}", nl=False, err=True)
    finally:
        click.echo(err=True)


def _command(
    group: click.Group, name: str, *examples: str
) -> Callable[[Callable[..., Shown[Any]]], Verb]:
    """Make a command from a function that returns a value, its text, and the exit code."""
    words = f"{group.name} {name}" if group.name else name

    def make(ask: Callable[..., Shown[Any]]) -> Verb:
        @click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
        @click.pass_context
        @functools.wraps(ask)
        def command(context: click.Context, /, as_json: bool, **arguments: Any) -> None:
            app = context.obj.app
            with _exit_codes(context):
                of = Fairness.of(app)
                # As a worker does at its start. It sets up Django, which a tier resolver may need,
                # and imports the modules with the tasks, which declare limits.
                app.loader.import_default_modules()
                with _usage_errors():
                    value, lines, code = ask(of, **arguments)
                if isinstance(value, Iterator):
                    for each in value:
                        line = json.dumps(made.plain(each)) if as_json else event_line(each)
                        click.echo(line)
                    context.exit(code)
            if as_json:
                click.echo(json.dumps(made.plain(value), indent=2))
            else:
                # In colour only on a terminal, and not with --no-color.
                click.echo("\n".join(lines), color=False if context.obj.no_color else None)
            context.exit(code)

        help_text = _help(ask.__doc__, words, *examples)
        made = click.command(name, cls=Verb, help=help_text)(command)
        made.ask = ask
        group.add_command(made)
        return made

    return make


def _plain_command(
    name: str, *examples: str, **settings: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command from a function that prints its answer itself."""

    def make(act: Callable[..., None]) -> click.Command:
        @click.pass_context
        @functools.wraps(act)
        def command(context: click.Context, /, **arguments: Any) -> None:
            with _exit_codes(context):
                act(context, **arguments)

        return nouns.command(name, help=_help(act.__doc__, name, *examples), **settings)(command)

    return make


@_command(nouns, "status")
def status(of: Fairness) -> Shown[Status]:
    """Show queues, who holds leases, tiers and counters."""
    return _shown(of.stats.status(), status_lines)


@_command(nouns, "doctor")
def doctor(of: Fairness) -> Shown[Diagnosis]:
    """Check Redis, settings, workers, queues and limits, and show how to correct what is wrong.

    The exit code is 0 if nothing is wrong, also with advice, and 1 if something is.
    """
    found = of.stats.doctor()
    return found, doctor_lines(found), 0 if found.is_well else FOUND


@_command(nouns, "observed", "", "--top 50")
@click.option(
    "--top",
    type=click.IntRange(1, TENANTS_AT_MOST),
    default=20,
    help="How many tenants, those with the most tasks first; default 20.",
)
def observed(of: Fairness, top: int) -> Shown[Observed]:
    """Show what workers that only observe would have rejected in the last day, by tenant."""
    return _shown(of.stats.observed(top=top), observed_lines)


def duration(text: str) -> float:
    """Read ``--for``, in seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def time(text: str) -> datetime:
    """Read ``--until``."""
    with contextlib.suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at
    expected = "a time with its time zone such as 2026-11-25T12:00Z"
    raise click.BadParameter(f"expected {expected}, got: {got(text)}")


def _ends(command: Command) -> Command:
    """Add ``--for`` and ``--until``."""
    for_ = click.option("--for", "for_seconds", type=duration, help="How long: 90, 10m, PT2H.")
    until = click.option("--until", type=time, help="The end: 2026-11-25T12:00Z.")
    return for_(until(command))


_by = click.option("--by", help="Your name, shown with the change; default: your user's.")
_clear = click.option("--clear", is_flag=True, help="End what was set.")
_reason = click.option("--reason", default="", help="Why, for the log and the event.")


def _overrides(command: Command) -> Command:
    """Add the options that an override has beside its numbers."""
    reason = click.option("--reason", help="Why, for operators.")
    return _ends(reason(_by(_clear(command))))


_service = click.option("--service", help="The service, if the setting tier_scope is service.")


def _numbers(holder: str) -> Callable[[Command], Command]:
    """Add an option for each number of a holder, such as ``--rate``."""

    def add(command: Command) -> Command:
        of = "Of each partition. " if holder == PARTITION else ""
        for word, each in reversed(list(columns_of(holder).items())):
            also = f", or {each.kind.typed_none}" if each.kind.none else ""
            text = f"{of}{each.help} Such as {each.example}{also}."
            command = click.option(f"--{word.replace('_', '-')}", help=text)(command)
        return command

    return add


def _given(options: Mapping[str, Any], *holders: str) -> dict[str, Any]:
    """Return the options that were typed, with the numbers of holders read; None is unlimited."""
    given = {name: value for name, value in options.items() if value is not None}
    for word, each in (item for holder in holders for item in columns_of(holder).items()):
        if word in given:
            try:
                given[word] = each.kind.read_typed(word, given[word])
            except ProblemsError as error:
                raise click.UsageError("; ".join(error.problems)) from None
    return given


def _signed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an override with the user of this process, if ``by`` is not given."""
    return {**options, "by": person(options.get("by"))}


def _shown(value: Answer, lines_of: Callable[[Answer], list[str]]) -> Shown[Answer]:
    return value, lines_of(value), 0


def _note(hint: str) -> None:
    if hint:
        click.echo(f"celery fairness: note: {hint}", err=True)


def _inspected(found: Inspection) -> Shown[KeyFacts]:
    code = 0 if found.known and not found.unknown else FOUND
    return found.facts, inspection_lines(found), code


def _overridden(found: Inspection, note: str) -> Shown[KeyFacts]:
    _note(note)
    return found.facts, overridden_lines(found), 0


def _override_cleared(
    key: str, clear: Callable[[], bool], others: Mapping[str, Any]
) -> Shown[ClearedOverride]:
    """Clear an override, unless another option is given."""
    if others:
        raise click.UsageError("expected --clear alone, or numbers")
    cleared = clear()
    text = f"{key}: its numbers are its own again" if cleared else f"{key}: has no override"
    return ClearedOverride(key=key, cleared=cleared), [text], 0 if cleared else FOUND


def _stopped(holds: ChangedHolds, note: str) -> Shown[ChangedHolds]:
    _note(note)
    return _shown(holds, holds_lines)


def _resumed(of: Fairness, holds: ChangedHolds) -> Shown[ChangedHolds]:
    return holds, hints.resumed_lines(of, holds), 0


@_command(limit_group, "list", "--page 2")
@click.option("--page", type=int, default=1, help="The number of the page, from 1.")
@click.option("--per-page", type=int, default=20, help="Keys on a page, 1 to 100.")
def limit_list(of: Fairness, page: int, per_page: int) -> Shown[KeyPage]:
    """List the known keys."""
    found = of.limits.list(page, per_page)
    unknown = any(each.unknown for each in found.items)
    shown = KeyPage(items=tuple(each.facts for each in found.items), pagination=found.pagination)
    return shown, keys_lines(found), FOUND if unknown else 0


@_command(limit_group, "show", "api.stripe.com", "api.stripe.com --page 2")
@click.argument("key", shell_complete=completion.keys)
@click.option("--page", type=int, default=1, help="A hundred leases at a time, from 1.")
def limit_show(of: Fairness, key: str, page: int) -> Shown[KeyFacts]:
    """Show what KEY holds, may hold and has waiting."""
    return _inspected(of.limits.inspect(key, page))


@_command(limit_group, "pause", "api.stripe.com --for 10m", "queue:mail --until 2026-11-25T12:00Z")
@click.argument("key", shell_complete=completion.keys)
@_ends
@_by
def limit_pause(of: Fairness, key: str, by: str | None, **ends: Any) -> Shown[ChangedHolds]:
    """Start nothing more under KEY; running tasks go on."""
    note = hints.unused_key(of, key)
    return _stopped(of.limits.pause(key, by=by, **ends), note)


@_command(limit_group, "resume", "api.stripe.com")
@click.argument("key", shell_complete=completion.keys)
@_by
def limit_resume(of: Fairness, key: str, by: str | None) -> Shown[ChangedHolds]:
    """End a pause of KEY."""
    return _resumed(of, of.limits.resume(key, by=by))


@_command(limit_group, "cool-down", "api.stripe.com --for 90", "api.stripe.com --clear")
@click.argument("key", shell_complete=completion.keys)
@_ends
@_reason
@_clear
def limit_cool_down(
    of: Fairness, key: str, reason: str, clear: bool, **ends: Any
) -> Shown[ChangedHolds]:
    """Start nothing under KEY for a time. A later call can only make it longer."""
    if [*ends.values(), clear or None].count(None) != len(ends):
        raise click.UsageError("expected --for DURATION, --until TIME or --clear")
    if clear:
        return _resumed(of, of.limits.clear_cool_down(key))
    for_seconds = ends["for_seconds"]
    if for_seconds is not None and not 1 <= for_seconds <= DAY_SECONDS:
        raise click.UsageError(f"--for: expected 1 to {DAY_SECONDS} seconds")
    note = hints.unused_key(of, key)
    return _stopped(of.limits.cool_down(key, reason=reason, **ends), note)


@_command(
    limit_group,
    "override",
    "api.stripe.com --rate 10/m --for 2h --reason incident",
    "'api.*' --concurrency 50 --for 2h",
    "api.stripe.com --clear",
)
@click.argument("key", shell_complete=completion.keys)
@_numbers("override")
@_overrides
def limit_override(
    of: Fairness, key: str, clear: bool, **options: Any
) -> Shown[KeyFacts | ClearedOverride]:
    """Replace the numbers of KEY, for a time or until they are cleared.

    With a pattern such as 'api.*', each key that begins with api. has the numbers for itself.
    """
    given = _given(options, "override")
    if clear:
        return _override_cleared(key, partial(of.limits.clear_override, key), given)
    note = hints.unused_key(of, key)
    return _overridden(of.limits.override(key, **_signed(given)), note)


@_command(tenant_group, "show", "42")
@click.argument("tenant", shell_complete=completion.tenants)
@_service
def tenant_show(of: Fairness, tenant: str, service: str | None) -> Shown[KeyFacts]:
    """Show what TENANT holds, may hold and has waiting."""
    return _inspected(of.tenants.inspect(tenant, service))


@_command(tenant_group, "pause", "42 --for 10m")
@click.argument("tenant", shell_complete=completion.tenants)
@_ends
@_by
def tenant_pause(of: Fairness, tenant: str, by: str | None, **ends: Any) -> Shown[ChangedHolds]:
    """Start nothing more of TENANT; running tasks go on."""
    note = hints.unused_tenant(of, tenant)
    return _stopped(of.tenants.pause(tenant, by=by, **ends), note)


@_command(tenant_group, "resume", "42")
@click.argument("tenant", shell_complete=completion.tenants)
@_by
def tenant_resume(of: Fairness, tenant: str, by: str | None) -> Shown[ChangedHolds]:
    """End a pause of TENANT."""
    return _resumed(of, of.tenants.resume(tenant, by=by))


@_command(
    tenant_group,
    "override",
    "42 --concurrency 10 --for 1h --reason import",
    "42 --rate 500/PT1H --for 1d",
    "42 --clear",
)
@click.argument("tenant", shell_complete=completion.tenants)
@_numbers("override")
@_service
@_overrides
def tenant_override(
    of: Fairness, tenant: str, service: str | None, clear: bool, **options: Any
) -> Shown[KeyFacts | ClearedOverride]:
    """Replace the numbers of TENANT, for a time or until they are cleared."""
    given = _given(options, "override")
    if clear:
        cleared = partial(of.tenants.clear_override, tenant, service)
        return _override_cleared(f"tenant:{tenant}", cleared, given)
    if not given.keys() & numbers_of("override").keys():
        raise click.UsageError("expected numbers, or --clear alone")
    note = hints.unused_tenant(of, tenant)
    return _overridden(of.tenants.override(tenant, service=service, **_signed(given)), note)


@_command(tenant_group, "tier", "42", "42 pro --concurrency 5", "42 --clear")
@click.argument("tenant", shell_complete=completion.tenants)
@click.argument("name", required=False, shell_complete=completion.tiers)
@_numbers("tenant")
@_clear
def tenant_tier(
    of: Fairness, tenant: str, name: str | None, clear: bool, **options: Any
) -> Shown[KeyFacts]:
    """Show the tier of TENANT, or publish that it is NAME, with numbers of its own."""
    own = _given(options, "tenant")
    if not tenant:
        raise click.UsageError("TENANT: expected a tenant such as 42, got: ''")
    if (clear and name is not None) or (own and name is None):
        raise click.UsageError("expected TENANT, TENANT NAME [numbers], or TENANT --clear")
    if name is not None:
        published = of.tenants.set_tier(tenant, name, **own)
        _note(hints.typed_as_key(tenant))
        _note(hints.short_tier(published))
    elif clear:
        of.tenants.clear_tier(tenant)
        _note(hints.typed_as_key(tenant))
    else:
        _note(hints.unused_tenant(of, tenant))
    found = of.tenants.inspect(tenant)
    code = FOUND if found.unknown else 0
    return found.facts, limit_lines(found), code


@_command(tenant_group, "purge", "42")
@click.argument("tenant", shell_complete=completion.tenants)
def tenant_purge(of: Fairness, tenant: str) -> Shown[Purged]:
    """Cancel all waiting tasks of TENANT; running tasks go on."""
    found = of.tenants.purge(tenant)
    _note("" if found.cancelled else hints.unused_tenant(of, tenant))
    text = f"tenant {printable(found.tenant)}: {count(found.cancelled, 'task')} cancelled"
    return found, [text], 0


@_command(queue_group, "list")
def queue_list(of: Fairness) -> Shown[tuple[QueueState, ...]]:
    """List the queues and their limits."""
    return _shown(of.queues.list(), queues_lines)


@_command(queue_group, "show", "mail")
@click.argument("queue", shell_complete=completion.queues)
def queue_show(of: Fairness, queue: str) -> Shown[QueueState]:
    """Show what waits in QUEUE, and its limit."""
    return _shown(of.queues.inspect(queue), queue_lines)


@_command(queue_group, "limit", "mail --global-limit 20 --partition-concurrency 1", "mail --clear")
@click.argument("queue", shell_complete=completion.queues)
@_numbers("queue")
@_numbers(PARTITION)
@click.option("--on-limit", type=click.Choice(ACTIONS), help="What a task above it does.")
@click.option("--clear", is_flag=True, help="End what was set: the settings' numbers hold again.")
def queue_limit(
    of: Fairness, queue: str, clear: bool, **numbers: str | None
) -> Shown[QueueLimit | ClearedQueueLimit]:
    """Set the limit of QUEUE as a whole, or that of each partition.

    If only one of the two has a number, the other is as the settings declare it.
    """
    given = with_partition(_given(numbers, "queue", PARTITION))
    if clear == bool(given):
        raise click.UsageError("expected numbers, or --clear alone")
    if clear:
        ended = of.queues.clear_limit(queue)
        text = "its numbers are those of the settings again" if ended else "nothing was set"
        cleared = ClearedQueueLimit(queue=queue, cleared=ended)
        return cleared, [f"{queue}: {text}"], 0 if ended else FOUND
    return _shown(of.queues.set_limit(queue, **given), queue_limit_lines)


@_command(
    queue_group,
    "migrate",
    "mail --to fairredis",
    "mail --to redis",
    "mail export --from fairredis://old:6379/0",
    "--from fairredis://redis:6379/0 --from-namespace fairness",
)
@click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=completion.queues)
@click.option("--to", type=click.Choice(["redis", "fairredis"]), help="The broker, for one QUEUE.")
@click.option("--from", "url", help="The broker URL of another installation.")
@click.option("--from-namespace", "namespace", help="Its namespace; default: that of the app.")
@click.option("--from-prefix", "prefix", help="Its global_keyprefix; default: that of the app.")
@click.option("--follow", is_flag=True, help="With --from: go on until Ctrl-C.")
def queue_migrate(
    _: Fairness, queues: tuple[str, ...], to: str | None, **options: Any
) -> Shown[Moved | MovedHere]:
    """Move the waiting tasks of QUEUE, while workers run.

    With --to they move between redis:// and fairredis:// on the Redis of the app. With --from they
    come from another installation on fairredis://, fairservers:// or faircluster://, with their
    delays, dead letters, pauses and overrides; without QUEUE from all its queues.
    """
    if to is None and options["url"] is None:
        raise click.UsageError("expected --from, or one QUEUE and --to")
    if to is not None and (any(options.values()) or len(queues) != 1):
        raise click.UsageError("--to: expected one QUEUE, and no other option")
    app = click.get_current_context().obj.app
    if to is None:
        return _moved_here(app, queues, **options)
    limiter = wired(app).installation.limiter
    limiter.expect_one_partition("a move between redis:// and fairredis://")
    with _progress("moved") as progress:
        moved = migrate(app, queues[0], to, progress)
    return moved, moved_lines(moved), FOUND if moved.waiting else 0


def _moved_here(
    app: Any,
    queues: tuple[str, ...],
    url: str,
    namespace: str | None,
    prefix: str | None,
    follow: bool,
) -> Shown[MovedHere]:
    here = wired(app).installation
    other = open_other(here, url, namespace, prefix)
    with _progress("moved") as progress:
        move = Move(here, other, queues, progress)
        try:
            moved = move.run(follow)
        except LimiterUnavailable:
            _note(
                f"{count(move.moved, 'task')} moved before; run the command again, and it goes on"
            )
            raise
    _note(
        "tiers of tenants and limits of queues that people have set are not copied: set them with "
        "tenant tier and queue limit"
    )
    return moved, moved_here_lines(moved), FOUND if moved.waiting else 0


@_command(task_group, "explain", "7f3c")
@click.argument("task", metavar="ID")
def task_explain(of: Fairness, task: str) -> Shown[Explanation]:
    """Show where the task ID is, and why it does not start."""
    return _shown(of.tasks.explain(task), explanation_lines)


def _filters(states: Sequence[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a list of tasks."""
    tenant = click.option(
        "--tenant", shell_complete=completion.tenants, help="Only tasks of this tenant."
    )
    queue = click.option(
        "--queue", shell_complete=completion.queues, help="Only tasks of this queue."
    )
    key = click.option(
        "--key", shell_complete=completion.keys, help="Only tasks that count in this key."
    )
    state = click.option("--state", type=click.Choice(states), help="Only those in this state.")
    return lambda command: tenant(queue(key(state(command))))


@_command(task_group, "list", "--tenant 42", "--queue mail --state waiting")
@_filters(STATES)
@click.option(
    "--limit", type=click.IntRange(1, LONGEST_LIST), default=LIST_LENGTH, help="Tasks on a page."
)
@click.option("--cursor", help="Where the page before ended.")
def task_list(of: Fairness, limit: int, cursor: str | None, **wanted: Any) -> Shown[TaskPage]:
    """List tasks: dead letters, then running, waiting, parked and delayed ones."""
    found = of.tasks.list(**wanted, limit=limit, cursor=cursor)
    while not found.items and found.cursor is not None:
        # A call looks at a part of the tasks, and none of them was wanted.
        found = of.tasks.list(**wanted, limit=limit, cursor=found.cursor)
    return _shown(found, list_lines)


@_command(task_group, "cancel", "7f3c", "--tenant 42 --queue mail --state waiting")
@click.argument("task", metavar="[ID]", required=False)
@_filters(CANCELLED_STATES)
@click.option("--yes", is_flag=True, help="Cancel all tasks of the filter without a question.")
def task_cancel(
    of: Fairness, task: str | None, yes: bool, **wanted: str | None
) -> Shown[Cancelled | TasksCancelled]:
    """Cancel the task ID while it waits, or all waiting tasks of a filter; running ones go on."""
    if (task is None) == (not any(each is not None for each in wanted.values())):
        raise click.UsageError("expected ID, or any of --tenant, --queue and --key")
    if task is None:
        return _cancel_all(of, yes, wanted)
    found = of.tasks.cancel(task)
    what, queue = f"task {printable(found.task_id)}", printable(found.queue)
    if not found.owner:
        return found, [f"{what}: cancelled; it waited in queue {queue}"], 0
    ends_it = f"celery -A APP control terminate SIGTERM {quoted(found.task_id)}"
    return found, [f"{what}: runs at {printable(found.owner)}; what ends it: {ends_it}"], FOUND


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _cancel_all(of: Fairness, yes: bool, wanted: Mapping[str, Any]) -> Shown[TasksCancelled]:
    """Cancel all tasks of a filter, if the person confirms their number."""
    if not yes:
        found = count(of.tasks.count(**wanted), "task")
        names = (f"{name} {printable(value)}" for name, value in wanted.items() if value)
        if not _may_ask():
            raise click.UsageError(f"{found} of {', '.join(names)}: expected --yes to cancel them")
        click.confirm(f"Cancel {found} of {', '.join(names)}?", abort=True, err=True)
    with _progress("cancelled") as progress:
        done = of.tasks.cancel_all(**wanted, progress=progress)
    return done, [f"{count(done.cancelled, 'task')} cancelled"], 0


@_command(task_group, "dead", "--queue mail", "--page 2")
@click.option("--queue", shell_complete=completion.queues, help="Only those of this queue.")
@click.option("--page", type=int, default=1, help="The number of the page, from 1.")
@click.option("--per-page", type=int, default=20, help="Dead letters on a page, 1 to 100.")
def task_dead(of: Fairness, queue: str | None, page: int, per_page: int) -> Shown[DeadLetterPage]:
    """List dead letters."""
    return _shown(of.tasks.dead_letters(queue, page, per_page), dead_lines)


@_command(task_group, "requeue", "7f3c")
@click.argument("task", metavar="ID")
def task_requeue(of: Fairness, task: str) -> Shown[Requeued]:
    """Put the dead letter ID back, last in its lane."""
    found = of.tasks.requeue(task)
    what, queue = f"task {printable(found.task_id)}", printable(found.queue)
    return found, [f"{what}: waits again in queue {queue}"], 0


@_command(nouns, "events", "--last 20", "--follow --types rate_limit.dropped")
@click.option("--last", type=click.IntRange(1, 1000), help="How many of the newest; default 100.")
@click.option("--after", help="The id of an event: those after it, the oldest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), help="How many after --after at most; default 100."
)
@click.option(
    "--types",
    shell_complete=completion.event_types,
    help="Only these, with commas, such as rate_limit.dropped.",
)
@click.option("--follow", is_flag=True, help="Go on with new ones; from now on, or --after.")
def events(
    of: Fairness,
    last: int | None,
    after: str | None,
    limit: int | None,
    types: str | None,
    follow: bool,
) -> Shown[EventPage | Iterator[Event]]:
    """Show the newest events, or those after --after; the oldest of them first."""
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


@_plain_command(
    "worker", "mail --loglevel INFO", context_settings={"allow_interspersed_args": False}
)
@click.argument("service", shell_complete=completion.services)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY WORKER OPTIONS]...")
def _worker(context: click.Context, service: str, options: tuple[str, ...]) -> None:
    """Start the workers of SERVICE, with OPTIONS of celery worker; its queues share the slots."""
    context.exit(run(context, service, options))


@_plain_command("exporter", "", "--address 0.0.0.0 --port 9808")
@click.option(
    "--address", default="127.0.0.1", show_default=True, help="The address on which it listens."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9808,
    show_default=True,
    help="Its port; 0 chooses a free one.",
)
def _exporter(context: click.Context, address: str, port: int) -> None:
    """Serve the metrics for Prometheus at /metrics, and the load of queues at /autoscale.

    There is no password: name another address only in a network that you trust.
    """
    app = context.obj.app
    fairness = Fairness.of(app)
    expect_client()
    from celery_fairness.exporter.collector import Exposition
    from celery_fairness.exporter.server import MetricsServer, serve

    app.loader.import_default_modules()
    try:
        server = MetricsServer(Exposition(fairness), address, port)
    except OSError as error:
        problem = error.strerror or str(error)
        click.echo(f"celery fairness: {address} port {port}: {problem}", err=True)
        context.exit(USAGE)
    serve(server, lambda: click.echo(f"{server.url}/metrics"))


@_plain_command("top", "", "--every 5s", "--once")
@click.option(
    "--every", type=duration, default="2s", show_default=True, help="The time between two looks."
)
@click.option("--once", is_flag=True, help="Print all tables once, as text.")
def _top(context: click.Context, every: float, once: bool) -> None:
    """Show queues, tenants, limits and workers live; pause and boost from the screen.

    The key ? shows the keys. Without a terminal it is the text of --once.
    """
    if not SHORTEST_LOOK_SECONDS <= every <= DAY_SECONDS:
        expected = f"{SHORTEST_LOOK_SECONDS} to {DAY_SECONDS} seconds"
        raise click.BadParameter(f"expected {expected}, got: {every:g}", param_hint="--every")
    app = context.obj.app
    of = Fairness.of(app)
    app.loader.import_default_modules()
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        lines = top.once_lines(of.stats.status())
        click.echo("\n".join(lines), color=False if context.obj.no_color else None)
        return
    top.expect_textual()
    from celery_fairness.cli.top_screen import TopScreen

    TopScreen(of, every).run()


@_plain_command("schema", "limit show", "")
@click.argument("command", nargs=-1)
def _schema(_: click.Context, command: tuple[str, ...]) -> None:
    """Print the JSON Schema of what COMMAND prints with --json, or of all commands.

    It needs neither an app nor Redis.
    """
    known, name = dict(verbs(nouns)), " ".join(command)
    if command and name not in known:
        problem = f"expected one that takes --json, such as limit show, got: {name!r}"
        raise click.UsageError(f"COMMAND: {problem}{suggestion(name, known)}")
    schemas = {each: verb.schema(each) for each, verb in known.items() if name in ("", each)}
    click.echo(json.dumps(schemas[name] if name else schemas, indent=2))


@_command(nouns, "library", "", "--delete cf_1a2b3c4d5e6f")
@click.option("--delete", "library", help="The name of one to delete.")
def library(_: Fairness, library: str | None) -> Shown[list[LibraryStatus] | DeletedLibrary]:
    """Show the function libraries of the server: each version of this package loads its own.

    Nothing deletes an old one by itself. Other installations may use the server: their last
    use is not shown here. A worker that needs a deleted library loads it again.
    """
    limiter = wired(click.get_current_context().obj.app).installation.limiter
    if library is not None:
        delete_library(limiter, library)
        return DeletedLibrary(deleted=library), [f"deleted {library}"], 0
    return _shown(libraries(limiter), libraries_lines)


@_command(nouns, "uninstall", "", "--yes")
@click.option("--yes", is_flag=True, help="Delete the keys.")
@click.option("--with-tasks", is_flag=True, help="Delete stored tasks too.")
def uninstall_(_: Fairness, yes: bool, with_tasks: bool) -> Shown[Leftovers]:
    """Delete all that this installation has stored in Redis.

    Without --yes nothing is deleted. With it nothing is deleted either while a worker is announced,
    or while tasks are stored and --with-tasks is not given. The exit code is then 1.
    """
    installation = wired(click.get_current_context().obj.app).installation
    left = uninstall(installation, yes=yes, with_tasks=with_tasks)
    return left, leftovers_lines(left, yes=yes), FOUND if yes and not left.deleted else 0


@_command(nouns, "check", "", "--repair")
@click.option("--repair", is_flag=True, help="Repair what needs no guess, and show what was done.")
def check(of: Fairness, repair: bool) -> Shown[Check]:
    """Compare the tables in Redis with each other, while workers go on.

    The exit code is 0 if nothing is left to do, and 1 if a finding is.
    """
    with _progress("keys compared") as progress:
        found = of.check(repair=repair, progress=progress)
    left = any(each.advice for each in found.findings)
    return found, check_lines(found), FOUND if left else 0
