"""The environment is chosen by its name, and its settings agree with the rest of the profile."""

import pytest

from espalier.config import (
    STAGES,
    Profile,
    PythonMathConfig,
    SearchQAConfig,
    external_inputs,
)
from espalier.records import ProfileError

MATH = 'environment.name="python_math"'


def test_question_answering_is_the_environment_unless_another_is_named(load):
    assert load().environment == SearchQAConfig()
    assert isinstance(load(MATH).environment, PythonMathConfig)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (['environment.name="python_maths"'], r"no rule is named 'python_maths'"),
        ([MATH, "environment.sesion=stateful"], r"did you mean environment\.session\?"),
        ([MATH, "environment.sandbox.image=a:1"], "does not go with backend="),
        ([MATH, "environment.sandbox.backend=podman"], "name an image of sandbox-images/"),
        ([MATH, "environment.heldout_problems=a"], r"needs environment\.problems"),
        ([MATH, "agent_texts.negatives=3"], "agent_texts are"),
        ([MATH, "synthesis.chain_weights=[0.0, 0.0, 0.0, 0.0]"], "chain_weights are all 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(load, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load(*overrides)


def test_the_environment_is_part_of_what_every_stage_but_the_last_computes():
    plain = Profile()
    other = Profile.model_validate({"environment": {"name": "python_math"}})
    changed = {s for s in STAGES if plain.stage_digest(s) != other.stage_digest(s)}
    assert changed == STAGES.keys() - {"register"}


def test_problem_files_count_by_their_content(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("a")
    profile = Profile.model_validate(
        {"environment": {"name": "python_math", "problems": str(path)}}
    )
    before = external_inputs(profile, "ingest")
    path.write_text("b")
    assert before.keys() == {"environment.problems"}
    assert external_inputs(profile, "ingest") != before
