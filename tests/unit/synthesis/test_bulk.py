import fcntl
import random

import pytest

from espalier.config import SynthesisConfig
from espalier.records import (
    SPLITS,
    ArtifactError,
    EngineError,
    NullTracker,
    open_artifact,
    read_tasks,
)
from espalier.records.artifact import work_dir
from espalier_search.synthesis.bulk_drawing import BulkOrder, draw_questions
from espalier_search.synthesis.bulk_parts import DrawEvent, QuestionStream, write_part
from espalier_search.synthesis.bulk_ray_workers import ray_workers
from espalier_search.synthesis.webshaper.generator import kind_weights
from espalier_search.synthesis.webshaper.query import canonical
from espalier_search.synthesis.webshaper.steps import Steps, chains, intersections

from .conftest import PROFILE

ONLY_SHORT_CHAINS = SynthesisConfig(
    chain_weights=(1.0, 1.0, 0.0, 0.0), intersection_weight=0.0, union_weight=0.0
)


@pytest.fixture(scope="module")
def new_stream(graph, worlds):
    """A stream of short chains and joins, in its first state, on every call."""
    steps = Steps(graph, "train")
    signatures = {"chain-2": chains(graph, 2)[::6], "intersection": intersections(graph)[::40]}
    weights = kind_weights(PROFILE.synthesis)
    return lambda: QuestionStream(signatures, weights, steps, worlds["train"], "7")


@pytest.fixture(scope="module")
def unbroken(new_stream, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bulk") / "part"
    drawn = write_part(directory, new_stream(), _text, 120)
    return directory, drawn


def _text(candidate):
    return canonical(candidate.query)


@pytest.mark.parametrize("seed", range(6))
def test_a_part_cut_anywhere_ends_like_an_unbroken_one(new_stream, unbroken, tmp_path, seed):
    whole, drawn = unbroken
    rng = random.Random(seed)
    broken = tmp_path / "part"
    broken.mkdir()
    for name in ("rows.jsonl", "journal"):
        content = (whole / name).read_bytes()
        (broken / name).write_bytes(content[: rng.randrange(len(content) + 1)])
    assert write_part(broken, new_stream(), _text, 120) == drawn
    for name in ("rows.jsonl", "journal", "done.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_a_part_has_one_writer_at_a_time(new_stream, tmp_path):
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match="process"):
            write_part(tmp_path, new_stream(), _text, 5)
    assert write_part(tmp_path, new_stream(), _text, 5).rows == 5


def test_a_source_that_runs_dry_ends_with_what_it_has(new_stream, tmp_path):
    drawn = write_part(tmp_path / "part", new_stream(), _text, 10**6)
    assert 120 < drawn.rows < 10**6
    assert drawn.ended_signatures > 0
    assert drawn.draws > drawn.rows
    assert write_part(tmp_path / "part", None, _text, 10**7) == drawn


def test_a_raised_quota_gives_the_rows_of_one_call(new_stream, unbroken, tmp_path):
    whole, drawn = unbroken
    for count in (50, 120):
        widened_part = write_part(tmp_path / "part", new_stream(), _text, count)
    assert widened_part == drawn
    assert write_part(tmp_path / "part", None, _text, 120) == drawn
    for name in ("rows.jsonl", "journal", "done.json"):
        assert (tmp_path / "part" / name).read_bytes() == (whole / name).read_bytes()


def test_a_journal_of_another_order_is_refused(new_stream):
    with pytest.raises(ArtifactError, match="journal"):
        new_stream().replay(DrawEvent(10**7, accepted=True))


def test_an_order_is_filled_although_parts_run_dry(knowledge_dir, graph, tmp_path):
    profile = PROFILE.model_copy(update={"synthesis": ONLY_SHORT_CHAINS})
    order = BulkOrder(knowledge=knowledge_dir, splits=("dev",), count=500, parts=8)
    manifest = draw_questions(profile, order, tmp_path / "questions", NullTracker())
    rows = list(manifest.rows.values())
    assert sum(rows) == 500
    assert min(rows) < 500 // 8 < max(rows)


def test_files_hold_questions_of_one_split_each(knowledge_dir, tmp_path):
    order = BulkOrder(knowledge=knowledge_dir, splits=SPLITS, count=60, parts=2)
    out = tmp_path / "questions"
    manifest = draw_questions(PROFILE, order, out, NullTracker())
    assert sum(manifest.rows.values()) == 60
    for split in SPLITS:
        for path in out.glob(f"{split}-*.jsonl"):
            assert {task.metadata.split for task in read_tasks(path)} == {split}


@pytest.mark.slow
def test_an_order_resumes_and_leaves_nothing_of_another(knowledge_dir, tmp_path):
    order = BulkOrder(knowledge=knowledge_dir, splits=("train",), count=30, parts=2)
    out = tmp_path / "questions"
    stale = work_dir(out) / "another order"
    stale.mkdir(parents=True)
    manifest = draw_questions(PROFILE, order, out, NullTracker())
    assert open_artifact(out).content == manifest.content
    assert not work_dir(out).exists()
    tasks = [task for part in ("0000", "0001") for task in read_tasks(out / f"train-{part}.jsonl")]
    assert len({task.extra["query"] for task in tasks}) == 30
    again = draw_questions(PROFILE, order, tmp_path / "again", NullTracker())
    assert again.content == manifest.content


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999"])
def test_a_silent_ray_cluster_is_reported_at_once(monkeypatch, tmp_path, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    order = BulkOrder(knowledge=tmp_path, splits=("train",), count=1)
    with pytest.raises(EngineError, match="RAY_ADDRESS="), ray_workers(PROFILE, order, tmp_path):
        pass
