"""The documentation against the code: tables, links, names, log lines, words, the quick start."""

from __future__ import annotations

import ast
import configparser
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import celery_fairness
from celery_fairness import errors
from celery_fairness.cli.nouns import nouns
from celery_fairness.control.health.event_types import TYPES
from celery_fairness.control.health.events_api import EventsApi
from celery_fairness.control.health.stats_api import StatsApi
from celery_fairness.control.key.limits_api import LimitsApi
from celery_fairness.control.queue.queues_api import QueuesApi
from celery_fairness.control.task.tasks_api import TasksApi
from celery_fairness.control.tenant.tenants_api import TenantsApi
from celery_fairness.message import headers
from celery_fairness.store.keys import Names
from celery_fairness.util.log_fields import FIELDS
from celery_fairness.worker import result_writer as lost
from tests.docs import tables
from tests.package.quick_start import ADDRESS
from tests.support.local_process import clean_environment
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GLOSSARY = ROOT / "docs/reference/glossary.md"
UPGRADING = ROOT / "UPGRADING.md"
LOG_LINES = ROOT / "docs/reference/log-lines.md"
KEY_PAGES = sorted((ROOT / "docs/internals").glob("redis-keys*.md"))
LUA = ROOT / "celery_fairness/store/lua"
LUA_README = LUA / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    UPGRADING,
    *sorted((ROOT / "docs").rglob("*.md")),
    LUA_README,
]
PAGES += [ROOT / "django_app/README.md", *sorted((ROOT / "examples").rglob("README.md"))]
PACKAGES = (ROOT / "celery_fairness", ROOT / "django_app" / "django_celery_fairness")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", tables.FILES, ids=lambda p: p.name)
def test_tables_say_what_the_code_says(page):
    text = page.read_text()
    assert text == tables.written(text, tables.FILES[page]), "run: python -m tests.docs.tables"


@every_page
def test_relative_links_resolve(page):
    for _, target in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: expected a file at {target!r}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: expected a heading for {target!r}"


@every_page
def test_python_blocks_compile(page):
    for text in blocks(page, "python"):
        compile(text, f"a block of {page.name}", "exec")


def names_in(file: Path) -> set[str]:
    """`function`, `Class` and `Class.method` of a module."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found.update(f"{node.name}.{method.name}" for method in methods)
    return found


@every_page
def test_a_link_from_a_name_to_a_module_names_something_in_it(page):
    for text, target in LINK.findall(page.read_text()):
        if target.endswith(".py"):
            name = text.strip("`")
            assert name in names_in((page.parent / target).resolve()), f"{name} in {target}"


@pytest.mark.parametrize("path", ["how-to/failures.md", "explanation/gate.md"])
def test_each_row_of_a_page_names_its_tests(path):
    page, tests = (ROOT / "docs" / path).read_text().split("\n## The tests\n")
    row = r"^\| (?!failure |it can|-)(.+?) \| (.+)$"
    listed, tested = (re.findall(row, text, re.MULTILINE) for text in (page, tests))
    assert len(listed) > 15
    assert [name for name, _ in tested] == [name for name, _ in listed]
    # Another test looks for each function in its file.
    named = r"\[(?:\w+\.)?test_\w+\]\(\S+\.py\)"
    assert [name for name, links in tested if not re.search(named, links)] == []


def test_each_import_that_goes_up_is_decided():
    arrow = re.compile(r"(django_)?celery_fairness\.[\w.]+ -> [\w.]+")
    decided, ignored = (
        {match[0] for match in arrow.finditer((ROOT / path).read_text())}
        for path in ("docs/adr/0017-two-arrows-for-types.md", "setup.cfg")
    )
    assert len(ignored) == 2
    assert decided == ignored


WALK = ROOT / "docs/internals/walk-of-a-task.md"
#: A function of a Lua file, or one that clients call.
LUA_FUNCTION = re.compile(
    r'^(?:local )?function ([\w.]+)\(|^register(?:_json)?\("(\w+)"', re.MULTILINE
)


def is_python(name: str) -> bool:
    """Return whether `room.module.Class.method` or `room.module.function` is defined there."""
    try:
        value = pkgutil.resolve_name(f"celery_fairness.{name}")
    except (ImportError, AttributeError, ValueError):
        return False
    module = getattr(value, "__module__", None)
    return callable(value) and f"celery_fairness.{name}".startswith(f"{module}.")


def is_lua(name: str) -> bool:
    """Return whether `file.lua: Module.function` is defined in that file."""
    path, _, function = name.partition(": ")
    file = LUA_README.parent / path
    if not file.is_file():
        return False
    return function in {a or b for a, b in LUA_FUNCTION.findall(file.read_text())}


def code_names(text: str) -> list[str]:
    """The names of code in a text: what stands in backquotes and has a dot."""
    quoted = (" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text))
    return [each for each in quoted if "." in each]


def unknown_names(text: str) -> list[str]:
    return [
        name for name in code_names(text) if not (is_lua if ".lua" in name else is_python)(name)
    ]


def test_every_name_in_the_walk_of_a_task_exists():
    assert unknown_names(WALK.read_text()) == []


@pytest.mark.parametrize("part", ["On `fairredis://`", "Behind a gate"])
def test_each_step_of_the_walk_names_what_does_it(part):
    walk = WALK.read_text().split(f"## {part}\n")[1].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert [step for step in steps if not code_names(step)] == []


def test_each_rule_of_parked_tasks_names_its_function_and_its_test():
    page = (ROOT / "docs/adr/0016-parked-tasks-are-lanes.md").read_text()
    rules = page.partition("| rule | function | test |\n|---|---|---|\n")[2].partition("\n\n")[0]
    # Another test looks for each test in its file.
    rows = [
        re.fullmatch(r"\| [^|]+ \| (`.+`) \| \[[\w.]+\]\(\S+\.py\) \|", row)
        for row in rules.split("\n")
    ]
    assert all(rows), rules
    assert unknown_names(" ".join(row[1] for row in rows if row)) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("worker.gate.gate.Gate.wrap", "worker.gate.gate.Gate.warp"),
        ("worker.gate.gate.Gate", "worker.gates.Gate"),
        ("app.task.FairTask.apply_async", "worker.gate"),
        # The module only imports it.
        ("message.attribution.attribution_of", "worker.gate.gate.attribution_of"),
        ("functions/park.lua: park", "functions/park.lua: parked"),
        ("functions/acquire.lua: acquire", "acquire.lua: acquire"),
        ("limits.lua: Limits.check", "leases.lua: Limits.check"),
        ("limits.lua: Limits.check", "limits.lua"),
    ],
)
def test_a_wrong_name_in_a_walk_is_found(right, wrong):
    assert unknown_names(f"first `{right}`, then `{right}`") == []
    assert unknown_names(f"first `{right}`, then `{wrong}`") == [wrong]


def log_lines() -> Iterator[str]:
    """The format of every line that the packages log, as their source says it."""
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr not in ("debug", "info", "warning", "error", "exception"):
                    continue
                speaker = ast.unparse(node.func.value).lstrip("_").removeprefix("self.")
                # A notice begins with its kind.
                position = {"logger": 0, "_notices": 1, "notices": 1}.get(speaker)
                if position is not None and isinstance(node.args[position], ast.Constant):
                    yield str(node.args[position].value)
    # These are a table, by how a task ended.
    yield from (each.text for each in lost.ENDS.values())


def test_every_log_line_is_explained():
    formats = sorted(set(log_lines()))
    assert len(formats) > 12
    told = re.sub(r"\s+", " ", LOG_LINES.read_text())
    missing = []
    for text in formats:
        literals = [re.escape(part) for part in re.split(r"%[.\d]*[a-z]", text)]
        if any(re.search(r"\w{3}", part) for part in literals):
            pattern = ".{0,120}?".join(literals)
            missing += [] if re.search(pattern, told) else [text]
    assert missing == [], "explain these lines in docs/reference/log-lines.md"


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    """Each call that logs a line."""
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                speaker = ast.unparse(node.func.value).lstrip("_").rpartition(".")[2].lstrip("_")
                if speaker in ("logger", "notices") and node.func.attr != "getLogger":
                    yield file, node


def test_a_line_that_names_one_task_has_fields():
    bare = [
        f"{file.name}:{node.lineno}"
        for file, node in log_calls()
        if "%s[%s]" in ast.unparse(node) and "extra" not in {each.arg for each in node.keywords}
    ]
    assert bare == []


def test_every_field_of_a_log_line_is_explained_and_no_line_has_another():
    table = LOG_LINES.read_text().partition("\n## Fields\n")[2].partition("\n## ")[0]
    assert [name for name in FIELDS if f"| `{name}` |" not in table] == []
    made = {
        ast.unparse(each.value).partition("(")[0]
        for _, node in log_calls()
        for each in node.keywords
        if each.arg == "extra"
    }
    # The others pass on what comes from `about`, which takes no other names.
    assert made == {"about", "_about", "fields", "extra"}


def glossary() -> list[str]:
    """The words that the glossary explains."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", GLOSSARY.read_text(), re.MULTILINE)
    return [word for word in rows if word != "word"]


def test_the_glossary_can_be_read():
    words = glossary()
    assert {"tenant", "tier", "lease", "slot", "gate", "reject"} <= set(words)
    assert len(words) == len(set(words))


def test_every_word_of_the_glossary_is_used():
    text = " ".join(page.read_text().lower() for page in PAGES if page.name != "glossary.md")
    assert [word for word in glossary() if word not in text] == []


#: Words of the API that mean what they mean everywhere.
PLAIN = {
    "all",
    "clear",
    "count",
    "follow",
    "is",
    "inspect",
    "known",
    "last",
    "list",
    "minutes",
    "read",
    "set",
    "status",
    "until",
}
NOUNS = (LimitsApi, TenantsApi, QueuesApi, TasksApi, EventsApi, StatsApi)


def methods(noun: type) -> list[str]:
    """The public methods of one noun of `Fairness`."""
    return [name for name, value in vars(noun).items() if callable(value) and name[0] != "_"]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_term_of_the_public_interface_is_in_the_glossary(noun):
    explained = {word.rstrip("s") for entry in glossary() for word in entry.split()}
    terms = {noun.__name__.removesuffix("Api").lower()}
    terms |= {part for name in methods(noun) for part in name.split("_")} - PLAIN
    assert [term for term in sorted(terms) if term.rstrip("s") not in explained] == []


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_method_is_on_the_page_of_the_python_api(noun):
    page = (ROOT / "docs/reference/python-api.md").read_text()
    of = f"fairness.{noun.__name__.removesuffix('Api').lower()}"
    assert [name for name in methods(noun) if f"`{of}.{name}(" not in page] == []


def test_every_exception_is_on_the_page_of_errors():
    page = (ROOT / "docs/reference/errors.md").read_text()
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FairnessError)
    }
    bases = {"ProblemsError", "TenantError"}
    assert [name for name in sorted(found - bases) if f"`{name}`" not in page] == []


def test_every_command_is_on_the_page_of_commands():
    page = (ROOT / "docs/reference/commands.md").read_text()
    missing = []
    for name, command in nouns.commands.items():
        verbs = getattr(command, "commands", None)
        full = [f"{name} {verb}" for verb in verbs] if verbs else [name]
        missing += [each for each in full if f"`{each}" not in page]
    assert missing == []


def documented_types() -> dict[str, str]:
    """The types of the keys in Redis that the pages list, by name without what follows a colon."""
    rows = [
        row
        for page in KEY_PAGES
        for row in re.findall(r"^\| (`[^|]*`) \| ([a-z]+) \|", page.read_text(), re.MULTILINE)
    ]
    return {
        re.split("[: ]", name)[0]: kind
        for names, kind in rows
        for name in re.findall("`([^`]*)`", names)
    }


def documented_keys() -> set[str]:
    """The names of keys in Redis that the pages list."""
    return set(documented_types())


#: The type of key that a command takes, by the beginning of its name.
TYPE_OF_COMMAND = {
    "GET": "string",
    "H": "hash",
    "L": "list",
    "S": "set",
    "X": "stream",
    "Z": "zset",
}


@every_page
def test_every_command_for_redis_in_a_page_fits_the_type_of_its_key(page):
    for command, key in re.findall(r"redis-cli ([A-Z]+) '\{fairness\}:(\w+)", page.read_text()):
        (kind,) = {of for name, of in TYPE_OF_COMMAND.items() if command.startswith(name)}
        assert kind == documented_types()[key], f"{command} {key}"


def test_one_lua_module_names_the_table_of_the_leases_of_a_key():
    names = [each.name for each in LUA.rglob("*.lua") if "Keys.LEASES" in each.read_text()]
    assert names == ["slots.lua"]


def test_the_names_of_keys_stand_in_one_module_and_in_the_pages():
    named = set(re.findall(r'= "([a-z_]+):?"', (LUA / "keys.lua").read_text()))
    of_python = set(vars(Names("shop"))) - {"prefix"}
    assert len(named) > 50
    # A new table needs the place of another one.
    assert len(documented_keys()) <= 68
    assert sorted((named | of_python) - documented_keys()) == []
    assert sorted(of_python - named) == []
    spelled = [
        found
        for file in LUA.rglob("*.lua")
        for found in re.findall(r'(?:prefix|keys\[1\]) \.\. "[a-z_]+:?"', file.read_text())
    ]
    of_kinds = set()
    for file in (ROOT / "celery_fairness").rglob("*.py"):
        if file.name != "keys.py":
            spelled += re.findall(r"""prefix(?:\}| \+ f?["'])[a-z][a-z_]+:?""", file.read_text())
        of_kinds |= set(re.findall(r"""\b(?:names|keys)\.of\(["']([a-z_]+)""", file.read_text()))
    assert spelled == []
    assert len(of_kinds) > 7
    assert sorted(of_kinds - documented_keys()) == []


def test_a_name_of_a_key_that_is_misspelled_is_an_error():
    """Lua reads a field that is missing as nil, which no name can be made of."""
    spelled = {
        name
        for file in LUA.rglob("*.lua")
        for name in re.findall(r"\bKeys\.(\w+)", file.read_text())
    }
    known = set(re.findall(r"^  ([A-Z_]+) = ", (LUA / "keys.lua").read_text(), re.MULTILINE))
    assert spelled == known


def functions_of(script: Path) -> set[str]:
    return set(re.findall(r'^register(?:_json)?\("(\w+)"', script.read_text(), re.MULTILINE))


def test_every_function_that_deletes_a_key_exists():
    functions = {
        name for script in (LUA / "functions").glob("*.lua") for name in functions_of(script)
    }
    named = set()
    for page in KEY_PAGES:
        table = page.read_text().partition("| deleted by |")[2]
        lasts = re.findall(r"^\| `.*\|([^|]*)\|$", table, re.MULTILINE)
        named |= {name for last in lasts for name in re.findall(r"`(\w+)`", last)}
    assert "claim" in named
    assert named - functions <= {"tasks"}, "`as tasks` stands for another row"


@pytest.mark.parametrize("script", sorted((LUA / "functions").glob("*.lua")), ids=lambda p: p.stem)
def test_the_comment_of_a_function_begins_with_its_name(script):
    # `adopt` is `put` with another flag.
    for name in functions_of(script) - {"adopt"}:
        assert re.search(rf"^  {name}: ", script.read_text(), re.MULTILINE), name


def test_the_comment_of_a_module_begins_with_its_name():
    modules = [*LUA.glob("*.lua"), *(LUA / "check").glob("*.lua")]
    assert modules
    for module in modules:
        assert module.read_text().startswith(f"--[[\n  {module.stem}: "), module.name


@pytest.mark.parametrize("script", sorted(LUA.rglob("*.lua")), ids=lambda p: p.stem)
def test_every_file_that_a_script_names_exists(script):
    named = re.findall(r"\b((?:\w+/)*\w+\.(?:lua|py))\b", script.read_text())
    folders = (LUA, LUA / "functions", LUA / "check", ROOT, ROOT / "celery_fairness")
    assert [n for n in named if not any((folder / n).exists() for folder in folders)] == []


def test_every_key_on_the_pages_is_one_of_the_code():
    files = [each for end in ("*.lua", "*.py") for each in PACKAGES[0].rglob(end)]
    code = " ".join(file.read_text() for file in files)
    assert [name for name in sorted(documented_keys()) if not re.search(rf"\b{name}\b", code)] == []


def test_the_functions_keep_the_events_of_the_table():
    text = (LUA / "events.lua").read_text().partition("local KEPT =")[2].partition("\nfunction")[0]
    kept = set(re.findall(r"(\S+\.\w+) ", text.replace('"', "")))
    assert kept == {each.name for each in TYPES.values() if each.stream == "kept_events"}


@every_page
def test_every_key_in_a_page_has_a_row(page):
    assert set(re.findall(r"\{fairness\}:(\w+)", page.read_text())) - documented_keys() == set()


COMMANDS = re.compile(r"(?:^|^\$ |`)celery -A \w+ fairness ([^`\n#]*)", re.MULTILINE)


@every_page
def test_every_command_in_a_page_parses(page):
    for text in COMMANDS.findall(page.read_text()):
        words = shlex.split(text.split("  ")[0])
        command: click.Command = nouns
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        # In the text a command may stand without its arguments.
        if words and words != ["…"]:
            assert not isinstance(command, click.Group), f"expected a command: {text}"
            command.make_context(command.name, words)


METHODS = re.compile(r"\bfairness\.(\w+)(?:\.(\w+))?\(")


@every_page
def test_every_method_in_a_page_exists(page):
    of = {noun.__name__.removesuffix("Api").lower(): methods(noun) for noun in NOUNS}
    of |= {name: [] for name in ("check", "close")}
    unknown = [
        f"fairness.{name}.{method}"
        for name, method in METHODS.findall(page.read_text())
        if name not in of or method not in ["", *of[name]]
    ]
    assert unknown == []


REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
every_page_of_reference = pytest.mark.parametrize("page", REFERENCE, ids=lambda p: p.name)
MADE = re.compile(r"<!-- table: .*?<!-- end: ", re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in REFERENCE],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_page_is_short_enough_to_read(page):
    assert len(page.read_text().split()) <= 1_500, "split it by what a reader wants"


def test_the_reference_has_few_pages():
    assert len(REFERENCE) <= 13, "put it where a reader already looks"


@every_page_of_reference
def test_a_section_of_the_reference_is_short_enough_to_read(page):
    """A page of the reference is not read as a whole, so each of its sections is."""
    first, *sections = re.split(r"^## ", MADE.sub("", page.read_text()), flags=re.MULTILINE)
    long = {part.splitlines()[0]: len(part.split()) for part in sections}
    assert {head: words for head, words in long.items() if words > 1_200} == {}
    assert len(page.read_text().split()) <= 6_000
    if len(page.read_text().split()) > 1_500:
        linked = {target for _, target in LINK.findall(first)}
        heads = {f"#{anchor}" for anchor in anchors(page)} & linked
        assert len(heads) >= len(sections), "begin with a link to each section"


def test_the_first_page_is_short_enough_to_read():
    assert len(README.read_text().split()) <= 1_100


def test_the_changelog_is_short_enough_to_read():
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 80


def figures(text: str) -> set[tuple[str, str]]:
    """The measured numbers of a text, each with its unit."""
    found = re.findall(r"(\d[\d,]*(?:\.\d+)?) (µs|ms|B|x|times)\b", text)
    return {(number.replace(",", ""), unit.replace("times", "x")) for number, unit in found}


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("README.md", "Figures"),
        ("docs/how-to/production.md", "Sizing"),
        ("docs/explanation/scaling.md", "How far one goes"),
    ],
)
def test_a_figure_of_another_page_is_one_of_the_benchmarks(page, heading):
    text = (ROOT / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    measured = figures((ROOT / "docs/explanation/benchmarks.md").read_text())
    unknown = [
        f"{number} {unit}"
        for number, unit in sorted(figures(text))
        # A page may round it.
        if number
        not in {
            f"{float(each):.{len(number.partition('.')[2])}f}"
            for each, of in measured
            if of == unit
        }
    ]
    assert unknown == []


def test_every_page_is_listed():
    """The site has a sidebar of these lists."""
    indexes = [ROOT / "docs/README.md", ROOT / "docs/adr/README.md"]
    listed = {
        (index.parent / target.partition("#")[0]).resolve()
        for index in indexes
        for _, target in LINK.findall(index.read_text())
    }
    pages = {page for end in ("md", "rst") for page in (ROOT / "docs").rglob(f"*.{end}")}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - listed - {indexes[0]}) == []


def test_the_page_from_the_docstrings_has_every_public_name():
    page = (ROOT / "docs/reference/classes.rst").read_text()
    named = {name.rpartition(".")[2] for name in re.findall(r":: (celery_fairness\.\S+)", page)}
    assert "errors" in named
    public = {name for name in celery_fairness.__all__ if not hasattr(errors, name)}
    assert public - {"__version__"} | {noun.__name__ for noun in NOUNS} <= named


INSTALLED = re.compile(r"""pip install [^\n`]*?(['"]?[^\s'"]*celery[-_]fairness[^\s'"]*)""")


def test_one_page_says_from_where_the_package_is_installed():
    """A release that puts it on an index changes the page, and this test names the others."""
    addresses = {
        name: set(INSTALLED.findall(text))
        for name, text in (
            *((str(page.relative_to(ROOT)), page.read_text()) for page in PAGES),
            *(
                (str(file.relative_to(ROOT)), file.read_text())
                for package in (*PACKAGES, ROOT / "examples")
                for file in package.rglob("*")
                if file.suffix in (".py", ".html", ".md", ".txt")
            ),
        )
    }
    assert addresses["README.md"]
    install = addresses.pop("docs/how-to/install.md")
    assert any(each.startswith(f"'{ADDRESS}") for each in install)
    others = {each for found in addresses.values() for each in found}
    assert [each for each in others if not each.startswith(f"'{ADDRESS}")] == []


def test_the_page_of_extras_has_each_of_them():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    page = (ROOT / "docs/how-to/install.md").read_text().partition("## Extras")[2]
    of_developers = {"dev", "docs"}
    extras = set(setup["options.extras_require"]) - of_developers
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == extras


def test_the_first_row_of_upgrading_is_this_version():
    (row,) = re.findall(
        rf"^\| {re.escape(celery_fairness.__version__)} \| (\w+) \| (\w+) \| `(\w+)` \|",
        UPGRADING.read_text(),
        re.MULTILINE,
    )
    (schema,) = re.findall(
        r'^local SCHEMA = "(\w+)"$', (LUA / "clock.lua").read_text(), re.MULTILINE
    )
    *_, last = sorted((PACKAGES[1] / "migrations").glob("0*.py"))
    assert row == (schema, str(headers.VERSION), last.stem)


class Pasted:
    """A folder with the files of a page, as a reader pastes them, and what runs in it."""

    def __init__(self, page: Path, folder: Path, broker_url: str) -> None:
        self.folder = folder
        self.broker = {"CELERY_BROKER_URL": broker_url}
        self.files = set()
        for text in blocks(page, "python"):
            if match := re.fullmatch(r"# (\w+\.py)", text.splitlines()[0]):
                (folder / match[1]).write_text(text)
                self.files.add(match[1])

    def run(self, *args: str) -> str:
        """Run Python in the folder; return what it printed."""
        environment = {**clean_environment(), **self.broker}
        done = subprocess.run(
            [sys.executable, *args],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


COMMAND = "celery -A shop worker --concurrency 4 --loglevel INFO\n"


def test_the_quick_start_runs_as_it_is_pasted(tmp_path, start_worker, redis_url):
    pasted = Pasted(README, tmp_path, f"fair{redis_url}")
    assert pasted.files == {"shop.py", "send.py", "look.py"}
    assert COMMAND in blocks(README, "sh")
    environment = {"PYTHONPATH": str(tmp_path), **pasted.broker}
    worker = start_worker("shop", concurrency=4, env=environment)
    for queue in ("analysis_priority", "analysis_default", "analysis_scheduled"):
        assert queue in worker.log_text()
    assert "fairredis://" in worker.log_text()

    pasted.run("send.py")
    (shown,) = blocks(README, "text")
    for line in shown.splitlines():
        eventually(lambda line=line: line in worker.log_text(), at_most(20))

    seen = pasted.run("look.py")
    assert re.match(r"tenant:fred: tier free, held [01], waiting \d+\nlimit 1: tier free\n", seen)

    def all_ran() -> None:
        printed = re.findall(r"(?:fred big|petra small)-\d", worker.log_text())
        assert len(printed) == len(set(printed)) == 13
        # Fred's run one at a time, in their order.
        assert [line for line in printed if "fred" in line] == [f"fred big-{n}" for n in range(10)]

    eventually(all_ran, at_most(60))


def test_the_blocks_about_tiers_run_one_after_the_other(tmp_path, redis_url):
    page = ROOT / "docs/how-to/choose-tiers.md"
    app = f"""\
from celery import Celery
from celery_fairness import Fairness
app = Celery("shop", broker="fair{redis_url}")
fairness = Fairness(app)
"""
    (tmp_path / "shop.py").write_text("\n".join([app, *blocks(page, "python")]))
    look = "import shop; print(*shop.fairness.settings.tiers)"
    pasted = Pasted(page, tmp_path, f"fair{redis_url}")
    assert "team" in pasted.run("-c", look).split()


SEND = """\
import imports, llm, models, reports, webhooks
from celery.result import AsyncResult
from shop import app

imports.import_all.delay(customer="42")
imports.click.delay("a button", customer="42")
print([llm.send(f"to {plan}", "42", plan).get(timeout=60) for plan in ("free", "pro")])
print([models.train.delay("m", size, customer="42").get(timeout=60) for size in (8, 64, 100)][2])
report = reports.report.delay(["may", "june"], customer="42").get(timeout=60)
print(AsyncResult(report, app=app).get(timeout=60))
urls = [f"https://{host}.example/hook" for host in ("broken", "first", "second")]
webhooks.fan_out.delay("paid", urls, customer="42")
"""
ANSWER = """\
import llm
from celery_fairness import RateLimitExceeded

def refuse(prompt):
    raise llm.TooManyRequests

llm.call_model = refuse
try:
    llm.ask.run("hello", "42")
except RateLimitExceeded as error:
    print(error.key, error.retry_after)
"""


def test_the_recipes_run_as_they_are_pasted(tmp_path, start_worker, redis_url):
    pasted = Pasted(ROOT / "docs/how-to/recipes.md", tmp_path, f"fair{redis_url}")
    assert pasted.files == {
        *("shop.py", "imports.py", "llm.py", "models.py", "reports.py", "webhooks.py")
    }
    environment = {"PYTHONPATH": str(tmp_path), **pasted.broker}
    worker = start_worker("shop", concurrency=4, env=environment)
    pasted.broker["CELERY_RESULT_BACKEND"] = redis_url
    results = "['TO FREE', 'TO PRO']\nm of 42 in 100 GB\n42: may: 12, june: 12\n"
    assert pasted.run("-c", SEND) == results
    printed = ["42 clicks a button", *(f"42 imports row {row}" for row in range(5))]
    printed += [
        f"paid delivered to https://{h}.example/hook" for h in ("broken", "first", "second")
    ]
    eventually(lambda: all(line in worker.log_text() for line in printed), at_most(60))
    assert "webhook:broken.example cools down for 1.0 s" in worker.log_text()
    look = "from shop import fairness; print(*(k.key for k in fairness.limits.list().items))"
    known = {"imports:42", "llm", "llm:free:42", "llm:pro:42", "webhook:first.example"}
    assert known <= set(pasted.run("-c", look).split())
    assert pasted.run("-c", ANSWER) == "llm 1\n"


@only_in_ci
def test_the_tutorial_runs_as_it_is_pasted(tmp_path, start_worker, redis_url):
    page = ROOT / "docs/tutorial.md"
    pasted = Pasted(page, tmp_path, f"fair{redis_url}")
    assert pasted.files == {"shop.py", "send.py", "mails.py"}
    assert COMMAND in blocks(page, "sh")
    environment = {"PYTHONPATH": str(tmp_path), **pasted.broker}
    start_worker("shop", concurrency=4, env=environment)
    commands = [
        line
        for text in blocks(page, "sh")
        for line in text.splitlines()
        if line.startswith("celery -A shop fairness ")
    ]

    def command(beginning: str, task_id: str = "") -> str:
        (line,) = (each for each in commands if f" fairness {beginning} " in each)
        words = shlex.split(line.replace(" ID", f" {task_id}"))
        return pasted.run("-m", *words)

    last = pasted.run("send.py").strip()
    # Between two tasks of a tenant its slot is free for a moment.
    kept = "blocked by tenant:fred: concurrency, held 1 of 1"
    eventually(lambda: kept in command("task explain", last), at_most(30))
    assert command("tenant tier").endswith("limit 3: tier pro\n")
    pasted.run("mails.py")
    assert command("limit show").startswith("mail-server: held ")
    assert "mail-server: concurrency 3 until " in command("limit override")
    assert "tenant:fred: paused" in command("tenant pause")
    assert command("tenant resume") == "tenant:fred: not stopped: tasks start as its limits allow\n"
