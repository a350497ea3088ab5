"""The living descendants of a process, cheap enough to look at before and after every test.

Invariant: the parent of each process is read once, when its process id is new.

Weakness: a process whose parent has ended is no descendant any more. If a process id is given out
again between two looks, it keeps the parent of the process that had it first.
"""

from __future__ import annotations

import os

import psutil

_parents: dict[int, int] = {}
_processes: dict[int, psutil.Process] = {}


def descendants(pid: int | None = None) -> dict[int, psutil.Process]:
    """Return all descendants of this process, or of `pid`, by process id; zombies too."""
    global _parents, _processes
    parents: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for each in psutil.pids():
        if (parent := _parents.get(each)) is None:
            try:
                parent = psutil.Process(each).ppid()
            except psutil.NoSuchProcess:
                continue
        parents[each] = parent
        children.setdefault(parent, []).append(each)
    _parents = parents
    _processes = {each: process for each, process in _processes.items() if each in parents}
    found: dict[int, psutil.Process] = {}
    pending = [os.getpid() if pid is None else pid]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child in found:
                continue
            try:
                found[child] = _processes.get(child) or psutil.Process(child)
            except psutil.NoSuchProcess:
                continue
            pending.append(child)
    _processes |= found
    return found
