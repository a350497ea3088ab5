"""The reference objects to a library with a small mistake, within a few short sequences."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.reference.gate_walk import GateWalk, gate_operations, gate_scene
from tests.reference.mistakes import MISTAKES, library_of, library_with
from tests.reference.scenes import FOCUSES, LENGTH, SHORT, focused_scene
from tests.reference.test_reference import objection_to
from tests.reference.walk import Walk
from tests.support.services import only_in_ci

#: Sequences in which a mistake must be found, if the recorded one does not find it any more.
SEQUENCES = 20


@pytest.fixture
def client(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        yield client


def objection_in(client, subject, seed, mistake=None):
    """Return what the reference objects to in a sequence of a subject."""
    is_gate = subject == "gate"
    scene = gate_scene(seed) if is_gate else focused_scene(subject, seed)
    operations = gate_operations(scene, LENGTH) if is_gate else scene.operations(SHORT)
    made = library_with(mistake, scene.budget) if mistake else None
    objection = objection_to(client, scene, operations, made, GateWalk if is_gate else Walk)
    if made:
        client.function_delete(made.name)
    return objection


def test_each_mistake_is_one_in_the_library():
    budget = focused_scene("order", 0).budget
    correct = library_of(budget).code
    assert all(library_with(mistake, budget).code != correct for mistake in MISTAKES)


@only_in_ci
@pytest.mark.redis
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_the_reference_objects(client, mistake):
    for seed in (mistake.seed, *range(SEQUENCES)):
        objection = objection_in(client, mistake.subject, seed, mistake)
        if objection:
            assert "Objection" in objection
            return
    pytest.fail(f"the reference accepts that {mistake.what}")


@pytest.mark.redis
@pytest.mark.parametrize("subject", [*FOCUSES, "gate"])
def test_the_reference_accepts_the_library_in_the_same_sequences(client, subject):
    for seed in range(2):
        assert objection_in(client, subject, seed) is None
