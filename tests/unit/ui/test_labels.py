"""The file of labels, and the rows that training reads from it."""

import json

import pytest

from espalier.records import ArtifactError
from espalier.training.own_traces import read_demonstrations, read_pairs
from espalier_ui.labels import LabelFile, preference_rows, sft_rows
from tests.factories.viewed_run import NOW, attempt


def labelled(path, *labels):
    """A file with labels of the attempts of one task."""
    found = LabelFile(path, clock=lambda: NOW)
    for number, label in enumerate(labels):
        messages = [
            one.model_dump() for one in attempt("t", number, right=label == "good").messages
        ]
        facts = {"id": f"train-0-{number}", "task": "t", "group": "1/t", "messages": messages}
        found.put(path.parent / "run", facts, label)
    return found


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labels_become_rows_that_the_warm_start_reads(tmp_path):
    labels = labelled(tmp_path / "labels.jsonl", "good", "bad", "odd", "good").all()
    traces = read_demonstrations(written(tmp_path / "sft.jsonl", sft_rows(labels)))
    assert [trace.messages[-1].content for trace in traces] == ["france", "france"]
    assert traces[0].messages[1].tool_calls[0].name == "search"
    pairs = read_pairs(written(tmp_path / "pairs.jsonl", preference_rows(labels)))
    assert len(pairs) == 2
    assert {pair.rejected.messages[-1].content for pair in pairs} == {"spain"}


def test_the_last_line_about_an_attempt_counts(tmp_path):
    file = labelled(tmp_path / "labels.jsonl", "good")
    facts = {"id": "train-0-0", "task": "t", "group": "1/t", "messages": []}
    file.put(tmp_path / "run", facts, "bad")
    other = LabelFile(tmp_path / "labels.jsonl")
    assert other.of_run(tmp_path / "run") == {"train-0-0": "bad"}
    file.put(tmp_path / "run", facts, None)
    assert other.of_run(tmp_path / "run") == {}


@pytest.mark.parametrize("rest", [b'{"run": "x', b"[1]\n", b'{"label": 5}\n', b"\xff\xfe\n", b"["])
def test_a_torn_or_foreign_line_costs_no_other_label(tmp_path, rest):
    path = tmp_path / "labels.jsonl"
    labelled(path, "good")
    with path.open("ab") as stream:
        stream.write(rest)
    facts = {"id": "train-0-9", "task": "t", "group": "1/t", "messages": []}
    LabelFile(path).put(tmp_path / "run", facts, "bad")
    found = LabelFile(path).of_run(tmp_path / "run")
    assert found == {"train-0-0": "good", "train-0-9": "bad"}


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="--labels"):
        labelled(tmp_path / "file" / "labels.jsonl", "good")
