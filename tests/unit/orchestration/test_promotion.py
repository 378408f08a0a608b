"""Promotion from any machine: what a version carries is enough, until a champion must be asked."""

import pytest

from espalier.evaluation import gain
from espalier.orchestration.promotion import RegistrySession, chosen_model
from espalier.records import RegistryError
from espalier.registry.model import CHAMPION
from tests.factories.evaluation import a_row
from tests.unit.registry.conftest import QUESTIONS, bench, exact, parent, target

__all__ = ["bench", "parent", "target"]


@pytest.fixture
def registry(bench):
    return RegistrySession(bench.target.uri, bench.name, run=None)


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
    with pytest.raises(RegistryError, match="--run"):
        registry.promote(None)
    assert bench.model.version(CHAMPION).version == first


def test_a_version_without_a_profile_needs_the_run(bench, registry):
    version = bench.model.version(bench.register(0.6))
    kept = f"{version.run_id}/artifacts/{version.folder}/profile.json"
    (written,) = bench.model_root().rglob(kept)
    written.unlink()
    with pytest.raises(RegistryError, match="--run"):
        registry.promote(None)


def test_promotion_finds_the_interval_that_the_evaluation_reported(bench, registry):
    """Questions are not asked in the order of their names: t10 comes before t2 in those only."""
    bench.register(0.6, warm=0.5)
    comparison = registry.promote(None).comparison
    rows = {
        policy: [
            a_row(f"t{place}", em=bool(em)) for place, em in enumerate(exact(share, QUESTIONS))
        ]
        for policy, share in (("trained", 0.6), ("warm_start", 0.5))
    }
    reported = gain(rows["trained"], rows["warm_start"], bench.profile.evaluation, seed=0)
    assert [comparison.gain, [comparison.low, comparison.high]] == [
        reported["em"],
        reported["ci95"],
    ]


def test_versions_of_no_model_name_the_models_there_are(bench):
    bench.register(0.6)
    with pytest.raises(RegistryError, match=rf"nosuch: .*{bench.name}"):
        RegistrySession(bench.target.uri, "nosuch", run=None).versions()


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ([], "espalier-search-agent"),
        (["espalier-my-docs"], "espalier-my-docs"),
        (["espalier-my-docs", "espalier-search-agent"], "espalier-search-agent"),
    ],
)
def test_an_unnamed_model_is_the_default_or_only_one(models, chosen):
    assert chosen_model(models, "registry") == chosen


def test_a_model_must_be_named_where_there_are_several():
    with pytest.raises(RegistryError, match="espalier-a, espalier-b"):
        chosen_model(["espalier-a", "espalier-b"], "registry")
