"""Promotion from any machine: what a version carries is enough, until a champion must be asked."""

import pytest

from espalier.orchestration.promotion import Registry
from espalier.records import RegistryError
from espalier.registry.model import CHAMPION
from tests.unit.registry.conftest import QUESTIONS, bench, parent, target

__all__ = ["bench", "parent", "target"]


@pytest.fixture
def registry(bench):
    return Registry(bench.target.uri, bench.name, run=None)


@pytest.mark.slow
def test_a_version_is_judged_by_the_profile_that_it_carries(bench, registry):
    number = bench.register(0.6)  # on fewer questions than the default profile asks for
    promotion = registry.promote(None)
    assert promotion.comparison.questions == QUESTIONS
    assert bench.model.version(CHAMPION).version == number


def test_a_champion_that_was_not_asked_yet_needs_the_run(bench, registry):
    first = bench.register(0.6)
    registry.promote(None)
    bench.register(0.9, suite="t" * 64)
    with pytest.raises(RegistryError, match=r"not on this machine .*--run RUN"):
        registry.promote(None)
    assert bench.model.version(CHAMPION).version == first


def test_a_version_without_a_profile_needs_the_run(bench, registry):
    version = bench.model.version(bench.register(0.6))
    kept = f"{version.run_id}/artifacts/{version.folder}/profile.json"
    (written,) = bench.model_root().rglob(kept)
    written.unlink()
    with pytest.raises(RegistryError, match="not on this machine"):
        registry.promote(None)
