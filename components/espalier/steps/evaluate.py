"""The `evaluate` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(  # noqa: PLR0913 (its arguments are its wires)
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Input[dsl.Model],
    warm_policy: dsl.Input[dsl.Model],
    trained_policy: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Dataset],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Judge untrained, warm-started and trained policy on the same held-out questions.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        base_policy: model directory, from `prepare_policy`.
        warm_policy: model directory, from `warm_start`.
        trained_policy: model directory, from `train`.
        evaluation: results on the held-out suite.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("evaluate", profile_json, usage.log_metric) as step:
        from espalier.evaluation import stage

        inputs = stage.Inputs(
            knowledge=Path(knowledge.path),
            accepted=Path(accepted.path),
            base_policy=Path(base_policy.path),
            warm_policy=Path(warm_policy.path),
            trained_policy=Path(trained_policy.path),
        )
        stage.run(step.profile, inputs, Path(evaluation.path), step.tracker)
