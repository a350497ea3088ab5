"""Our schemes are in kombu's table, however a program finds and loads kombu."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import kombu
import pytest

ROOT = Path(__file__).resolve().parents[3]

KNOWN = """
from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
for scheme in ("fairredis", "fairrediss", "fairsentinel"):
    assert scheme in TRANSPORT_ALIASES, scheme
assert get_transport_cls("fairredis").__module__ == "celery_fairness.transport.schemes"
"""

#: A way to find or load kombu -> the code of a program. ``KNOWN`` holds after each.
PROGRAMS = {
    "found_first": """
import importlib.util
import celery_fairness
spec = importlib.util.find_spec("kombu.transport")
assert spec.loader.get_filename("kombu.transport") == spec.origin
""",
    "loaded_again": """
import importlib
import celery_fairness, kombu.transport
first = kombu.transport.TRANSPORT_ALIASES
importlib.reload(kombu.transport)
assert kombu.transport.TRANSPORT_ALIASES is not first
""",
    "loaded_before_and_again": """
import importlib
import kombu.transport, celery_fairness
importlib.reload(kombu.transport)
""",
    "imported_anew": """
import sys
import celery_fairness, kombu.transport
del sys.modules["kombu.transport"]
""",
    "its_own_loader": """
import celery_fairness, kombu.transport
for each in (kombu.transport.__loader__, kombu.transport.__spec__.loader):
    assert type(each) is type(celery_fairness.__loader__), each
    assert "exec_module" not in vars(each)
""",
    "a_finder_of_others_that_searches_again": """
import importlib.util, sys
import celery_fairness
class Hook:
    inside = False
    def find_spec(self, name, path=None, target=None):
        if self.inside or name != "kombu.transport":
            return None
        self.inside = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.inside = False
sys.meta_path.insert(0, Hook())
sys.meta_path.append(Hook())
""",
    "a_loader_with_slots": """
import sys
from importlib.machinery import PathFinder
import celery_fairness
class Loader:
    __slots__ = ("real",)
    def create_module(self, spec):
        return self.real.create_module(spec)
    def exec_module(self, module):
        self.real.exec_module(module)
class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "kombu.transport" else None
        if spec:
            loader = Loader()
            loader.real, spec.loader = spec.loader, loader
        return spec
sys.meta_path.insert(1, Finder())
""",
    "a_copied_loader": """
import copy, importlib.util
import celery_fairness
spec = importlib.util.find_spec("kombu.transport")
spec.loader = copy.copy(spec.loader)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
""",
    "without_the_finder": """
import sys
import celery_fairness
ours = celery_fairness.transport.__name__
sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != ours]
from celery import Celery
app = Celery("shop", broker="fairredis://localhost:1/0")
celery_fairness.Fairness(app, {})
app.conf.broker_url
""",
}


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code + KNOWN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_the_schemes_are_known(code):
    run(code)


def test_kombu_may_lie_in_an_archive(tmp_path):
    """Its modules share one loader there."""
    folder, archive = Path(kombu.__file__).parent, tmp_path / "libraries.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for each in folder.rglob("*.py"):
            file.write(each, each.relative_to(folder.parent))
    run(f"""
import sys
sys.path.insert(0, {str(archive)!r})
import celery_fairness
import celery, kombu.transport
assert kombu.transport.__file__.startswith({str(archive)!r})
""")
