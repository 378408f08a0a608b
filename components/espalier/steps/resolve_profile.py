"""The `resolve_profile` step: the form of a run becomes one checked profile."""

from typing import Optional

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_profile(  # noqa: PLR0913 (a component's arguments are the fields of its form)
    profile: str,
    seed: int,
    knowledge_path: Optional[str] = None,  # noqa: UP045 (kfp reads no `str | None`)
    base_model: Optional[str] = None,  # noqa: UP045
    demonstrations: Optional[int] = None,  # noqa: UP045
    heldout_questions: Optional[int] = None,  # noqa: UP045
    algorithm: Optional[str] = None,  # noqa: UP045
    training_steps: Optional[int] = None,  # noqa: UP045
    tasks_per_step: Optional[int] = None,  # noqa: UP045
    group_size: Optional[int] = None,  # noqa: UP045
    learning_rate: Optional[float] = None,  # noqa: UP045
    overrides: Optional[str] = None,  # noqa: UP045
) -> str:
    """Read the profile, apply the form's changes, and return the whole of it as JSON.

    Args:
        profile: name of a profile in the image, or the JSON of a whole profile.
        seed: replaces the profile's own.
        knowledge_path: replaces knowledge.path.
        base_model: replaces policy.model.
        demonstrations: replaces synthesis.trajectories.
        heldout_questions: replaces synthesis.heldout_tasks.
        algorithm: replaces training.algorithm.preset.
        training_steps: replaces training.steps.
        tasks_per_step: replaces training.tasks_per_step.
        group_size: replaces training.group_size.
        learning_rate: replaces training.optimizer.learning_rate.
        overrides: section.key=value, several separated by semicolons.
    """
    import sys

    from espalier.records import EspalierError
    from espalier.steps.profiles import resolved_profile

    form = {
        "knowledge_path": knowledge_path,
        "base_model": base_model,
        "demonstrations": demonstrations,
        "heldout_questions": heldout_questions,
        "algorithm": algorithm,
        "training_steps": training_steps,
        "tasks_per_step": tasks_per_step,
        "group_size": group_size,
        "learning_rate": learning_rate,
    }
    try:
        resolved = resolved_profile(profile, seed=seed, overrides=overrides, form=form)
    except EspalierError as error:
        sys.exit(f"error: resolve_profile: {error}")
    return resolved.model_dump_json()
