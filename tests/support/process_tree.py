"""The living descendants of a process, cheap enough to look at before and after every test.

Invariant: the parent of each process is read once, when its process id is new.

Weakness: a process whose parent has ended is no descendant any more.
"""

from __future__ import annotations

import os

import psutil

_parents: dict[psutil.Process, int] = {}


def descendants(pid: int | None = None) -> dict[int, psutil.Process]:
    """Return all descendants of this process, or of `pid`, by process id; zombies too."""
    global _parents
    parents: dict[psutil.Process, int] = {}
    children: dict[int, list[psutil.Process]] = {}
    # psutil returns the same object for a process that it has listed before.
    for process in psutil.process_iter():
        try:
            parent = _parents[process] if process in _parents else process.ppid()
        except psutil.NoSuchProcess:
            continue
        parents[process] = parent
        children.setdefault(parent, []).append(process)
    _parents = parents
    found: dict[int, psutil.Process] = {}
    pending = [os.getpid() if pid is None else pid]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                pending.append(child.pid)
    return found
