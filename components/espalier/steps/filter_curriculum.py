"""The `filter_curriculum` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def filter_curriculum(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    warm_policy: dsl.Input[dsl.Model],
    curriculum: dsl.Output[dsl.Dataset],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Estimate pass rates and keep the tasks that can be learned from.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        warm_policy: model directory, from `warm_start`.
        curriculum: learnable tasks.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("filter_curriculum", profile_json, usage.log_metric) as step:
        from espalier.curriculum import stage

        inputs = stage.Inputs(
            knowledge=Path(knowledge.path),
            accepted=Path(accepted.path),
            warm_policy=Path(warm_policy.path),
        )
        stage.run(step.profile, inputs, Path(curriculum.path), step.tracker)
