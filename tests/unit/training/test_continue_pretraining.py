import pandas as pd
import pytest

from espalier.config import Profile
from espalier.policy.loading import load_policy, save_policy
from espalier.records import (
    AgentText,
    DataError,
    Message,
    NullTracker,
    Provenance,
    open_artifact,
    publishing,
    write_agent_texts,
)
from espalier.stages import continue_pretraining as stage
from espalier.training.demonstrations import encode_negative, encode_text
from tests.factories.tiny import tiny_dialect, tiny_policy
from tests.factories.tracking import Notes

OFF = Profile(threads=1, episode={"max_tokens": 96})
ON = Profile.model_validate(
    OFF.model_dump(exclude_defaults=True)
    | {
        "agent_texts": {"memories": 8},
        "continued_pretraining": {"enabled": True, "steps": 12, "texts_per_step": 4,
                                  "checkpoint_every": 4, "optimizer": {"learning_rate": 5e-3}},
    }
)  # fmt: skip


def a_text(number=0, words=1):
    question = f"What is the country of Lyon {number}? " + "lyon " * words
    action = "<think> country </think> <search> Lyon country </search>"
    return AgentText(
        text_id=f"t{number}",
        kind="planning",
        style="retrieval",
        prompt=(Message(role="user", content=question.strip()),),
        pieces=(
            Message(role="assistant", content=action),
            Message(role="tool", content="Lyon | country: France"),
            Message(role="assistant", content="<think> answer </think> <answer> France </answer>"),
        ),
    )


@pytest.fixture
def inputs(tmp_path):
    def made(texts):
        provenance = Provenance(producer="test", config_digest="c", seed=0)
        with publishing(tmp_path / "accepted", provenance) as draft:
            if texts:
                write_agent_texts(draft.path / "agent_texts.jsonl", texts)
        with publishing(tmp_path / "base_policy", provenance) as draft:
            save_policy(tiny_policy(), draft.path / "policy")
            (draft.path / "run.json").write_text("{}")
        return {name: tmp_path / name for name in ("accepted", "base_policy")}

    return made


def weights(directory):
    return load_policy(directory / "policy").model.state_dict()


def test_without_pretraining_the_base_policy_keeps_its_content_digest(inputs, tmp_path):
    given = inputs([])
    manifest = stage.run(OFF, given, tmp_path / "out", NullTracker())
    assert manifest.content == open_artifact(given["base_policy"]).content
    assert manifest.rows["texts"] == 0


def test_reading_on_lowers_the_loss_and_is_reproducible(inputs, tmp_path):
    given = inputs([a_text(8, words=200), *(a_text(number) for number in range(8))])
    tracker = Notes()
    manifest = stage.run(ON, given, tmp_path / "out", tracker)
    history = pd.read_parquet(tmp_path / "out" / "history.parquet")
    assert manifest.rows["texts"] == 8, "one is longer than a context"
    assert any("1 of 9" in line for line in tracker.lines)
    assert len(history) == 12
    assert history["loss"].iloc[-1] < 0.7 * history["loss"].iloc[0]
    before, after = weights(given["base_policy"]), weights(tmp_path / "out")
    assert any(not before[name].equal(after[name]) for name in before)
    assert stage.run(ON, given, tmp_path / "again", NullTracker()).content == manifest.content


@pytest.mark.parametrize("texts", [[], [a_text(1, words=200)]])
def test_without_a_text_that_fits_nothing_is_published(inputs, tmp_path, texts):
    with pytest.raises(DataError, match=r"episode\.max_tokens=96"):
        stage.run(ON, inputs(texts), tmp_path / "out", NullTracker())
    assert not (tmp_path / "out").exists()


def test_texts_train_every_token_negatives_only_the_policys():
    dialect = tiny_dialect()
    whole, masked = encode_text(a_text(), dialect), encode_negative(a_text(), dialect)
    assert whole.token_ids == masked.token_ids
    assert set(whole.loss_mask) == {1}
    pairs = zip(masked.token_ids, masked.loss_mask, strict=True)
    text = dialect.text([token for token, mask in pairs if mask])
    assert [said in text for said in ("lyon", "answer", "information", "what is")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_profile_that_reads_on_without_texts_is_refused():
    with pytest.raises(ValueError, match="continued_pretraining"):
        Profile.model_validate({"continued_pretraining": {"enabled": True}})
