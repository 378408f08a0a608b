"""The warm start with files of the user's own: mixed or alone, resumed, counted, never judged."""

import json

import pytest

from espalier.chain import OWN_QUESTIONS, STAGES
from espalier.config import PolicyConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.environments import family_of
from espalier.policy.embedded import build_policy, train_tokenizer
from espalier.policy.loading import Policy, save_policy
from espalier.records import (
    DataError,
    FinalAnswer,
    NullTracker,
    Provenance,
    publishing,
    read_manifest,
    write_tasks,
)
from espalier.records.trajectory import write_trajectories
from espalier.stages import warm_start
from espalier.stages.train import keep_what_was_shown
from tests.factories.records import make_trajectory
from tests.factories.sums import Sums
from tests.factories.tracking import Notes
from tests.factories.training import Interrupted, InterruptingTracker

ORIGIN = Provenance(producer="validate", config_digest="c", seed=0)
WARM_START = {"steps": 4, "trajectories_per_step": 2, "evaluate_every": 2, "dev_questions": 2}


def profile_with(**warm_start_keys):
    return Profile.model_validate(
        {
            "threads": 1,
            "environment": {"name": Sums.name},
            "policy": {"dialect": "hermes"},
            "episode": {"max_turns": 2, "max_tokens": 200, "max_turn_tokens": 60},
            "warm_start": WARM_START | warm_start_keys,
        }
    )


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """What the stage reads: three tasks of each split, one demonstration, a fresh policy."""
    folder = tmp_path_factory.mktemp("run")
    family = family_of(profile_with())
    with publishing(folder / "knowledge", ORIGIN) as draft:
        family.ingest(draft, NullTracker())
    with publishing(folder / "accepted", ORIGIN) as draft:
        (draft.path / "tasks").mkdir()
        tasks = {split: family.tasks(split, 3) for split in ("train", "dev", "heldout")}
        for split, found in tasks.items():
            write_tasks(draft.path / "tasks" / f"{split}.jsonl", found)
        shown = tasks["train"][0]
        messages = (*shown.prompt, FinalAnswer("0").message())
        write_trajectories(
            draft.path / "trajectories.parquet",
            [make_trajectory(shown.task_id, messages=messages)],
        )
    syntax = SYNTAXES["hermes"]
    config = PolicyConfig(
        vocab_size=400, hidden_size=32, attention_heads=2, layers=("conv", "attention"),
        feed_forward_size=32,
    )  # fmt: skip
    tokenizer = train_tokenizer(["what is 1 + 1 ? 2"] * 20, 400, syntax, family.specs)
    model = build_policy(config, tokenizer, syntax.stop_texts(family.specs), max_tokens=200, seed=0)
    with publishing(folder / "pretrained_policy", ORIGIN) as draft:
        save_policy(Policy(model, tokenizer), draft.path / "policy")
    return {name: folder / name for name in STAGES["warm_start"].inputs}


def asking(question, name="add"):
    call = {"type": "function", "function": {"name": name, "arguments": '{"a": 3, "b": 4}'}}
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "7"},
        ]
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two demonstrations of which one asks a held-out question, and two pairs."""
    folder = tmp_path_factory.mktemp("files")
    rows = [asking("and what is 3 + 4 then?"), asking("What is 2001  + 2001?")]
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = [
        {"prompt": question, "chosen": "seven", "rejected": "eight"}
        for question in ("3 and 4?", "4 and 3?")
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return folder


def preferring(files, **keys):
    table = {"path": files / "pairs.jsonl", "steps": 3, "pairs_per_step": 2}
    return profile_with(demonstrations=files / "own.jsonl", preferences=table, **keys)


def test_own_demonstrations_are_shown_beside_the_teachers(artifacts, files, tmp_path):
    profile, listener = profile_with(demonstrations=files / "own.jsonl"), Notes()
    made = warm_start.run(profile, artifacts, tmp_path / "warm", listener)
    assert (made.rows["trajectories"], made.rows["own_demonstrations"]) == (2, 1)
    counts = json.loads((tmp_path / "warm" / "own_traces" / "counts.json").read_text())
    assert counts == {"demonstrations": {"left_out": {"heldout_question": 1}, "used": 1}}
    assert (tmp_path / "warm" / OWN_QUESTIONS).read_text() == '"and what is 3 + 4 then?"\n'
    assert any("1 heldout_question" in line for line in listener.lines)
    with publishing(tmp_path / "trained", ORIGIN) as draft:
        keep_what_was_shown(draft, tmp_path / "warm")
    assert OWN_QUESTIONS in read_manifest(tmp_path / "trained").files


@pytest.mark.parametrize("killed_after", [4, 6])
def test_a_killed_preference_phase_ends_the_same(artifacts, files, tmp_path, killed_after):
    whole = warm_start.run(preferring(files), artifacts, tmp_path / "whole", NullTracker())
    killing = InterruptingTracker(killed_after)
    with pytest.raises(Interrupted):
        warm_start.run(preferring(files), artifacts, tmp_path / "broken", killing)
    again = warm_start.run(preferring(files), artifacts, tmp_path / "broken", NullTracker())
    assert again.content == whole.content
    assert again.rows["own_preferences"] == 2
    assert "preferences.parquet" in again.files


def test_preferences_change_the_policy_that_imitation_left(artifacts, files, tmp_path):
    plain = profile_with(demonstrations=files / "own.jsonl", teacher=False)
    without = warm_start.run(plain, artifacts, tmp_path / "plain", NullTracker())
    assert without.rows["trajectories"] == 1, "own demonstrations in the teacher's place"
    profile = preferring(files, teacher=False)
    made = warm_start.run(profile, artifacts, tmp_path / "warm", NullTracker())
    weights = "policy/model.safetensors"
    assert made.files[weights] != without.files[weights]
    assert made.files["history.parquet"] == without.files["history.parquet"]


def test_a_faulty_line_ends_the_stage_before_training(artifacts, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps(asking("3 and 4?", name="multiply")))
    profile = profile_with(demonstrations=own)
    with pytest.raises(DataError, match=r"own\.jsonl, line 1: .*multiply"):
        warm_start.run(profile, artifacts, tmp_path / "warm", InterruptingTracker(1))


def test_the_files_count_by_their_content(files, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text("{}")
    profile = profile_with(demonstrations=own, preferences={"path": files / "pairs.jsonl"})
    before = STAGES["warm_start"].external_inputs(profile)
    own.write_text("{ }")
    after = STAGES["warm_start"].external_inputs(profile)
    assert before.keys() >= {"warm_start.demonstrations", "warm_start.preferences.path"}
    assert {name for name in before if before[name] != after[name]} == {"warm_start.demonstrations"}


def test_without_a_teacher_somebody_has_to_demonstrate():
    with pytest.raises(ValueError, match="imitate"):
        profile_with(teacher=False)
