import fcntl
import random
from pathlib import Path

import pytest

from espalier.config import SplitsConfig, SynthesisConfig
from espalier.records import (
    SPLITS,
    ArtifactError,
    EngineError,
    NullTracker,
    open_artifact,
    read_tasks,
)
from espalier.records.artifact import work_dir
from espalier_search.synthesis.bulk_drawing import (
    BulkOrder,
    Part,
    distinct_signatures,
    draw_questions,
    first_quotas,
    widen_quotas,
)
from espalier_search.synthesis.bulk_parts import (
    DrawEvent,
    QuestionStream,
    pack_event,
    read_events,
    recover_part,
    write_part,
)
from espalier_search.synthesis.bulk_ray_workers import ray_workers
from espalier_search.synthesis.webshaper.generator import kind_weights
from espalier_search.synthesis.webshaper.query import canonical
from espalier_search.synthesis.webshaper.rules import broken_rule
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


def test_a_stream_yields_fair_questions_each_once(new_stream):
    texts = []
    for event, candidate in new_stream().events():
        assert event.accepted == (candidate is not None)
        if candidate is not None:
            assert broken_rule(candidate) is None
            texts.append(canonical(candidate.query))
        if len(texts) == 60:
            break
    assert len(set(texts)) == 60


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


def test_a_finished_part_is_left_alone(unbroken):
    directory, drawn = unbroken
    assert write_part(directory, None, _text, 120) == drawn


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
    for name in ("rows.jsonl", "journal", "done.json"):
        assert (tmp_path / "part" / name).read_bytes() == (whole / name).read_bytes()


def test_rows_without_event_and_events_without_row_are_cut_off(tmp_path):
    rows, journal = tmp_path / "rows.jsonl", tmp_path / "journal"
    events = [DrawEvent(d, accepted=d < 9) for d in (3, 200, 1, 9)]
    rows.write_bytes(b"a\nb\nc\nhalf")
    journal.write_bytes(b"".join(map(pack_event, events)) + b"\x01")
    kept = recover_part(rows, journal)
    assert (kept.rows, kept.row_bytes, kept.events) == (2, 4, 3)
    assert rows.read_bytes() == b"a\nb\n"
    assert list(read_events(journal, 3)) == events[:3]
    rows.write_bytes(b"")
    assert recover_part(rows, journal).events == 0


def test_a_journal_of_another_order_is_refused(new_stream):
    with pytest.raises(ArtifactError, match="journal"):
        new_stream().replay(DrawEvent(10**7, accepted=True))


def test_no_two_signatures_write_the_same_question(graph):
    joined = distinct_signatures(graph)["intersection"]
    assert len({(frozenset(join.arms), join.tail) for join in joined}) == len(joined)
    assert {(frozenset(join.arms), join.tail) for join in intersections(graph)} == {
        (frozenset(join.arms), join.tail) for join in joined
    }


def test_an_order_is_divided_by_the_splits_entities():
    order = BulkOrder(knowledge=Path(), splits=("train", "dev", "heldout"), count=101, parts=2)
    quotas = first_quotas(order, SplitsConfig(heldout_share=0.25, dev_share=0.1))
    assert sum(quotas.values()) == 101
    assert [quota for part, quota in quotas.items() if part.split == "dev"] == [5, 5]
    assert [part.name for part in quotas][:3] == ["train-0000", "train-0001", "dev-0000"]


def test_other_parts_draw_what_exhausted_parts_lack():
    first, second, third = (Part("train", number) for number in range(3))
    quotas = {first: 10, second: 10, third: 9}
    wider = widen_quotas(quotas, {first: 3, second: 10, third: 9}, 29)
    assert wider == {first: 10, second: 14, third: 12}
    last = widen_quotas(wider, {first: 3, second: 14, third: 10}, 29)
    assert last == {first: 10, second: 16, third: 12}
    assert widen_quotas(last, {first: 3, second: 15, third: 10}, 29) == last
    assert widen_quotas(last, {first: 3, second: 16, third: 10}, 29) == last


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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_a_silent_ray_cluster_is_reported_at_once(monkeypatch, tmp_path, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    order = BulkOrder(knowledge=tmp_path, splits=("train",), count=1)
    with (
        pytest.raises(EngineError, match="RAY_ADDRESS="),
        ray_workers(PROFILE, order, tmp_path),
    ):
        pass
