"""The `train` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(  # noqa: PLR0913 (its arguments are its wires)
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    curriculum: dsl.Input[dsl.Dataset],
    warm_policy: dsl.Input[dsl.Model],
    trained_policy: dsl.Output[dsl.Model],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Train the policy by reinforcement learning on search episodes.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        curriculum: learnable tasks, from `filter_curriculum`.
        warm_policy: model directory, from `warm_start`.
        trained_policy: model directory.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("train", profile_json, usage.log_metric) as step:
        from espalier.steps import training

        inputs = training.Inputs(
            knowledge=Path(knowledge.path),
            accepted=Path(accepted.path),
            curriculum=Path(curriculum.path),
            warm_policy=Path(warm_policy.path),
        )
        training.run(step.profile, inputs, Path(trained_policy.path), step.tracker)
