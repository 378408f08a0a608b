"""The ledger of prompts: each draw is settled once, and survives a kill under its number."""

import json

import pytest
import torch

from espalier.training.rl import ledger as ledger_module
from espalier.training.rl.ledger import DrawJournal, OpenDraw, Outcome, PromptLedger


def drawn(*task_ids, journal=None, step=1):
    ledger = restored(None, journal, step=0)
    ledger.step = step
    ledger.draw(task_ids)
    return ledger


def resumed(ledger, tmp_path, *, step=1):
    """Another process's ledger, from what a checkpoint has of this one."""
    torch.save(ledger.state(), tmp_path / "state.pt")
    return restored(torch.load(tmp_path / "state.pt", weights_only=True), None, step=step)


def restored(state, journal, *, step=1):
    again = PromptLedger()
    again.journal = journal
    again.restore(state, step=step)
    return again


@pytest.fixture
def journal(tmp_path):
    return DrawJournal(tmp_path / ".draws.jsonl", "run")


def rows_of(ledger, tmp_path):
    ledger.write(tmp_path / "ledger.jsonl")
    return [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]


def test_draws_are_numbered_and_settled_under_a_reason(tmp_path):
    ledger = drawn("a", "b", "c")
    assert ledger.draw(["d"]) == [3]
    ledger.close(0)
    ledger.close(2)
    ledger.settle([0], Outcome.TRAINED)
    ledger.settle([3], Outcome.LOST)
    summary, *rows = rows_of(ledger, tmp_path)
    assert (summary["draws"], summary["open"], summary["trained"], summary["lost"]) == (4, 2, 1, 1)
    outcomes = [(row["number"], row["outcome"]) for row in rows]
    assert outcomes == [(1, "drawn"), (2, "closed"), (0, "trained"), (3, "lost")]
    _, row, *_ = rows_of(resumed(ledger, tmp_path), tmp_path)[1:]
    assert row["outcome"] == "drawn", "what was sampled and not trained is sampled again"
    ledger.end()
    assert ledger.counts == {"trained": 1, "lost": 1, "run_ended": 2}
    assert ledger.open_draws == []


def test_a_draw_is_settled_once():
    ledger = drawn("a")
    ledger.settle([0], Outcome.TRAINED)
    with pytest.raises(AssertionError, match="settled twice"):
        ledger.settle([0], Outcome.TRAINED)
    with pytest.raises(AssertionError, match="closed after"):
        ledger.close(0)


def test_a_checkpoint_keeps_open_draws_and_counts(tmp_path):
    ledger = drawn("a", "b", "c", step=4)
    ledger.settle([1], Outcome.TRAINED)
    again = resumed(ledger, tmp_path, step=4)
    assert again.open_draws == [OpenDraw(0, "a", 4), OpenDraw(2, "c", 4)]
    assert again.counts == {"trained": 1}
    assert again.state() == ledger.state()
    assert again.draw(["d"]) == [3]


def test_draws_after_the_checkpoint_keep_their_numbers_and_tasks(journal):
    ledger = drawn("a", "b", journal=journal)
    ledger.settle([0], Outcome.TRAINED)
    state = ledger.state()
    ledger.saved()
    ledger.step = 2
    ledger.draw(["c"])
    ledger.settle([1], Outcome.TRAINED)  # in weights that the kill takes away
    ledger.draw(["d", "e"])
    again = restored(state, journal)
    found = [(draw.number, draw.task_id) for draw in again.open_draws]
    assert found == [(1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert again.draw(["f"]) == [5]


def test_a_kill_before_the_journal_begins_anew_changes_nothing(journal):
    state = drawn("a", "b", journal=journal).state()
    assert [draw.number for draw in restored(state, journal).open_draws] == [0, 1]


@pytest.mark.parametrize("cut", [1, 2, 11])
def test_a_line_that_was_cut_off_is_no_draw(tmp_path, journal, cut):
    drawn("a", "b", journal=journal)
    path = tmp_path / ".draws.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again = drawn(journal=journal)
    assert [draw.task_id for draw in again.open_draws] == ["a"]
    again.draw(["c"])
    assert [draw.task_id for draw in drawn(journal=journal).open_draws] == ["a", "c"]


@pytest.mark.parametrize(
    "damage", [b"\0" * 40 + b"\n", b"\xff\xfe\n", b"[]\n", b'[2,"c"]\n', b"7\n", b'[9, "c", 1]\n']
)
def test_a_damaged_journal_counts_up_to_the_damage(tmp_path, journal, damage):
    drawn("a", "b", journal=journal)
    path = tmp_path / ".draws.jsonl"
    path.write_bytes(path.read_bytes() + damage + b'[2, "d", 1]\n')
    again = drawn(journal=journal)
    assert [draw.task_id for draw in again.open_draws] == ["a", "b"]
    assert again.draw(["e"]) == [2]


def test_a_journal_newer_than_the_checkpoint_is_not_read(journal):
    former = drawn("a", journal=journal)
    state = former.state()
    former.draw(["b"])
    former.saved()  # a checkpoint that a copy of the one before takes the place of
    former.draw(["c"])
    again = restored(state, journal)
    assert again.draw(["x", "y"]) == [1, 2]
    assert len(again.state()["open"]) == 3


def test_the_journal_of_another_run_is_not_read(tmp_path, journal):
    drawn("a", journal=DrawJournal(tmp_path / ".draws.jsonl", "other"))
    assert drawn(journal=journal).open_draws == []


def test_a_long_run_has_a_small_ledger(monkeypatch, tmp_path):
    monkeypatch.setattr(ledger_module, "KEPT_ROWS", 8)
    ledger = PromptLedger()
    for step in range(100):
        ledger.step = step + 1
        ledger.settle(ledger.draw(["a", "b"]), Outcome.TRAINED)
    again = resumed(ledger, tmp_path, step=100)
    summary, *rows = rows_of(again, tmp_path)
    assert (summary["draws"], summary["trained"]) == (200, 200)
    assert [row["number"] for row in rows] == list(range(192, 200))


def test_digests_differ_where_any_row_ever_did(monkeypatch):
    monkeypatch.setattr(ledger_module, "KEPT_ROWS", 1)

    def digest(*outcomes):
        ledger = drawn(*"abc")
        for number, outcome in enumerate(outcomes):
            ledger.settle([number], outcome)
        return ledger.state()["digest"]

    same, other = [Outcome.TRAINED] * 3, [Outcome.LOST, Outcome.TRAINED, Outcome.TRAINED]
    assert digest(*same) == digest(*same) != digest(*other)
