"""The documentation against the code: tables, links, names, log lines, words, the quick start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_fairness.worker import outcome_writer as lost
from tests.docs import tables
from tests.support.local_process import clean_environment
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LUA_README = ROOT / "celery_fairness/store/lua/README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), LUA_README]
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
    told = re.sub(r"\s+", " ", " ".join(page.read_text() for page in OPERATIONS))
    missing = []
    for text in formats:
        literals = [re.escape(part) for part in re.split(r"%[.\d]*[a-z]", text)]
        if any(re.search(r"\w{3}", part) for part in literals):
            pattern = ".{0,120}?".join(literals)
            missing += [] if re.search(pattern, told) else [text]
    assert missing == []


OPERATIONS = (ROOT / "docs" / "operations.md", ROOT / "docs" / "django.md")


def glossary() -> list[str]:
    """The words that the glossary explains."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    return [word for word in rows if word != "word"]


def test_the_glossary_can_be_read():
    words = glossary()
    assert {"tenant", "tier", "lease", "slot", "gate", "refused"} <= set(words)
    assert len(words) == len(set(words))


def test_every_word_of_the_glossary_is_used():
    text = " ".join(page.read_text().lower() for page in PAGES if page.name != "glossary.md")
    assert [word for word in glossary() if word not in text] == []


@pytest.fixture
def pasted(tmp_path):
    """A folder with the files of README's quick start, as a reader pastes them."""
    for text in blocks(README, "python"):
        first = text.splitlines()[0]
        if match := re.fullmatch(r"# (\w+\.py)", first):
            (tmp_path / match[1]).write_text(text)
    return tmp_path


def test_the_quick_start_runs_as_it_is_pasted(pasted, start_worker, redis_url):
    assert {file.name for file in pasted.iterdir()} == {"shop.py", "send.py", "look.py"}
    command = "celery -A shop worker --concurrency 4 --loglevel INFO\n"
    assert command in blocks(README, "sh")
    broker = {"CELERY_BROKER_URL": f"fair{redis_url}"}
    worker = start_worker("shop", concurrency=4, env={"PYTHONPATH": str(pasted), **broker})
    for queue in ("analysis_priority", "analysis_default", "analysis_scheduled"):
        assert queue in worker.log_text()
    assert "fairredis://" in worker.log_text()

    environment = {**clean_environment(), **broker}

    def run(name: str) -> str:
        done = subprocess.run(
            [sys.executable, name], cwd=pasted, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("send.py")
    (shown,) = blocks(README, "text")
    for line in shown.splitlines():
        eventually(lambda line=line: line in worker.log_text(), 20)

    seen = run("look.py")
    assert re.match(r"tenant:fred: tier free, held [01], waiting \d+\nlimit 1: tier free\n", seen)

    def all_ran() -> None:
        printed = re.findall(r"(?:fred big|petra small)-\d", worker.log_text())
        assert len(printed) == len(set(printed)) == 13
        # Fred's run one at a time, in their order.
        assert [line for line in printed if "fred" in line] == [f"fred big-{n}" for n in range(10)]

    eventually(all_ran, 60)
