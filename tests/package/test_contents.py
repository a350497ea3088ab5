"""What is shipped: the package list against the folders, the built files against the sources."""

from __future__ import annotations

import configparser
import os
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from celery_fairness import __version__
from tests.package.build import FILES, MADE, ROOT, SHIPPED, Built, build, found

#: Read by people who work on the package, not by the package.
NOT_SHIPPED = {"celery_fairness/store/lua/README.md"}


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def listed(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def files_of(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def test_the_package_list_is_the_folders(setup_cfg):
    folders = {
        ".".join((top, *path.parent.parts))
        for top, folder in SHIPPED.items()
        for path in files_of(folder)
        if path.name == "__init__.py"
    }
    declared = listed(setup_cfg["options"]["packages"])
    assert set(declared) == folders
    assert declared == sorted(declared)


def test_every_folder_with_code_is_a_package():
    loose = {
        str(folder / path)
        for folder in SHIPPED.values()
        for path in files_of(folder)
        if path.suffix == ".py" and not (folder / path).with_name("__init__.py").exists()
    }
    assert loose == set()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The files that `make dist` made; without them new ones, outside of the work tree."""
    made = os.environ.get(MADE)
    return found(Path(made)) if made else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Built) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built.wheel) as archive:
        yield archive


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    outside = {
        f"{top}/{path.as_posix()}" for top, folder in SHIPPED.items() for path in files_of(folder)
    }
    assert inside == outside - NOT_SHIPPED


@pytest.mark.parametrize(
    "kind",
    [
        "celery_fairness/py.typed",
        "django_celery_fairness/py.typed",
        ".lua",
        "django_celery_fairness/migrations/0001",
        ".html",
        ".css",
        ".dist-info/licenses/LICENSE",
    ],
)
def test_the_wheel_holds_each_kind(wheel, kind):
    assert any(kind in name for name in wheel.namelist())


def test_the_wheel_holds_nothing_that_only_tests_use(wheel):
    names = [name.split("/") for name in wheel.namelist()]
    assert {top for top, *_ in names if not top.endswith(".dist-info")} == set(SHIPPED)
    assert [name for name in names if {"tests", "demo_site", "examples"} & set(name)] == []


def test_the_source_archive_holds_what_the_wheel_is_built_from(built, wheel):
    with tarfile.open(built.sdist) as archive:
        paths = [Path(each.name) for each in archive.getmembers() if each.isfile()]
    inside = {Path(*path.parts[1:]).as_posix() for path in paths}
    sources = {
        name.replace("django_celery_fairness/", "django_app/django_celery_fairness/", 1)
        for name in wheel.namelist()
        if ".dist-info/" not in name
    }
    assert {path.parts[0] for path in paths} == {f"celery_fairness-{__version__}"}
    made = {name for name in inside if ".egg-info/" in name} | {"PKG-INFO"}
    assert inside - made == sources | set(FILES)


def test_celery_and_pytest_find_what_extends_them(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    found = {group: dict(points[group]) for group in points.sections()}
    assert found == {
        "celery.commands": {"fairness": "celery_fairness.cli.commands:fairness"},
        "celery.result_backends": dict.fromkeys(
            ("cluster", "clusters"), "celery_fairness.results:ClusterBackend"
        ),
        "pytest11": {"fairness": "celery_fairness.testing.plugin"},
    }


def test_the_metadata_is_what_we_promise(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "celery-fairness"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra")) == {
        "embedded",
        "django",
        "metrics",
        "top",
        "otel",
        "docs",
        "dev",
    }


def test_every_dependency_is_pinned_and_nothing_names_a_place(setup_cfg):
    asked = listed(setup_cfg["options"]["install_requires"])
    for extra in setup_cfg["options.extras_require"].values():
        asked += listed(extra)
    text = (ROOT / "constraints.txt").read_text()
    pinned = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in listed(text)
        if not line.startswith("#")
    }
    wanted = {re.sub(r"[-_.]+", "-", Requirement(line).name).lower() for line in asked}
    assert wanted <= pinned
    assert "://" not in text
    assert " @ " not in text


def test_pyproject_holds_only_the_build_system_and_ruff():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(pyproject) == {"build-system", "tool"}
    assert set(pyproject["tool"]) == {"ruff"}
