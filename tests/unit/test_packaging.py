"""What is shipped: the package list against the folders, the wheel against the files."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
#: Top folder in the wheel -> where its source is.
SHIPPED = {
    "celery_fairness": ROOT / "celery_fairness",
    "django_celery_fairness": ROOT / "django_app" / "django_celery_fairness",
}
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy, so that nothing is left in the work tree."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in SHIPPED.values():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(folder, copy / folder.relative_to(ROOT), ignore=ignored)
    code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    built = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, str(out)],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    outside = {
        f"{top}/{path.as_posix()}" for top, folder in SHIPPED.items() for path in files_of(folder)
    }
    assert inside == outside - NOT_SHIPPED


@pytest.mark.parametrize(
    "kind", ["celery_fairness/py.typed", ".lua", "django_celery_fairness/migrations/0001"]
)
def test_the_wheel_holds_each_kind(wheel, kind):
    assert any(kind in name for name in wheel.namelist())


def test_celery_and_pytest_find_what_extends_them(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    found = {group: dict(points[group]) for group in points.sections()}
    assert found == {
        "celery.commands": {"fairness": "celery_fairness.cli.commands:fairness"},
        "pytest11": {"fairness": "celery_fairness.testing.plugin"},
    }


def test_the_metadata_is_what_we_promise(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "celery-fairness"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra")) == {
        "embedded",
        "django",
        "cli",
        "metrics",
        "top",
        "otel",
        "dev",
    }
    assert any(item.endswith("/LICENSE") for item in wheel.namelist())


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
