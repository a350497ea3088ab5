"""The ledger: whole lines from many processes, put together to the story of each job."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path

import pytest

from examples.code_analysis.jobs import JobBook
from examples.code_analysis.ledger import Entry, Ledger, LedgerReader


def test_entries_come_back_once_in_the_order_of_their_times(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    reader = LedgerReader(ledger)
    ledger.write("planned", job="a", user="paul", kind="analyze")
    ledger.write("sent", job="a", user="paul")

    first = reader.read_new()
    ledger.write("ready")
    second = reader.read_new()

    assert [entry["event"] for entry in first] == ["planned", "sent"]
    assert [entry["event"] for entry in second] == ["ready"]
    assert reader.read_new() == []


def test_half_a_line_is_not_read_before_it_is_whole(tmp_path: Path) -> None:
    reader = LedgerReader(Ledger(tmp_path))
    path = tmp_path / "1.jsonl"
    line = b'{"event": "ready", "at_seconds": 1.0}\n'
    path.write_bytes(line + line[:10])

    assert len(reader.read_new()) == 1
    path.write_bytes(line + line)
    assert len(reader.read_new()) == 1


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("ready")
    child = os.fork()
    if child == 0:
        ledger.write("ready")
        os._exit(0)
    os.waitpid(child, 0)

    assert {path.stem for path in tmp_path.iterdir()} == {str(os.getpid()), str(child)}


def test_a_body_that_raises_is_written_as_failed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running("good", "paul") as facts:
        facts["lines"] = 12
    with pytest.raises(KeyError), ledger.running("bad", None):
        raise KeyError("x")

    book = JobBook()
    book.add(LedgerReader(ledger).read_new())

    assert (book.jobs["good"].failed, book.jobs["good"].lines) == (False, 12)
    assert book.jobs["bad"].failed
    assert book.open_jobs == []


STORY: list[Entry] = [
    {"event": "planned", "at_seconds": 1.0, "job": "a", "user": "paul", "kind": "analyze"},
    {"event": "sent", "at_seconds": 2.0, "job": "a", "user": "paul", "kind": "analyze"},
    {"event": "received", "at_seconds": 3.0, "job": "a"},
    {"event": "received", "at_seconds": 4.0, "job": "a"},
    {"event": "start", "at_seconds": 5.0, "job": "a", "user": "paul"},
    {"event": "end", "at_seconds": 6.0, "job": "a", "user": "paul", "ok": True, "lines": 3},
]


def test_the_story_does_not_depend_on_the_order_of_its_entries() -> None:
    for order in permutations(STORY):
        book = JobBook()
        for entry in order:
            book.add([entry])
        job = book.jobs["a"]
        assert (job.user, job.kind, job.planned) == ("paul", "analyze", True)
        assert (job.wait_seconds, job.refusals, job.lines) == (3.0, 1, 3)
        assert job.runs(until_seconds=9.0) == [(5.0, 6.0)]
        assert job.done
        assert not job.failed


def test_a_job_that_still_runs_runs_until_now() -> None:
    book = JobBook()
    book.add(STORY[:-1])

    assert book.jobs["a"].runs(until_seconds=9.0) == [(5.0, 9.0)]
    assert [job.id for job in book.open_jobs] == ["a"]
