"""The reference objects to a library with a small mistake, within a few short sequences."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.reference.mistakes import MISTAKES, library_with
from tests.reference.scenes import FOCUSES, SHORT, focused_scene
from tests.reference.test_reference import objection_to

#: Sequences in which a mistake must be found, if the recorded one does not find it any more.
SEQUENCES = 20


@pytest.fixture
def client(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        yield client


@pytest.mark.redis
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_the_reference_objects(client, mistake):
    for seed in (mistake.seed, *range(SEQUENCES)):
        scene = focused_scene(mistake.subject, seed)
        made = library_with(mistake, scene.budget)
        objection = objection_to(client, scene, scene.operations(SHORT), made)
        client.function_delete(made.name)
        if objection:
            assert "Objection" in objection
            return
    pytest.fail(f"the reference accepts that {mistake.what}")


@pytest.mark.redis
@pytest.mark.parametrize("subject", FOCUSES)
def test_the_reference_accepts_the_library_in_the_same_sequences(client, subject):
    for seed in range(2):
        scene = focused_scene(subject, seed)
        assert objection_to(client, scene, scene.operations(SHORT)) is None
