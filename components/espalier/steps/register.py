"""The `register` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def register(
    profile_json: str,
    evaluation: dsl.Input[dsl.Dataset],
    trained_policy: dsl.Input[dsl.Model],
    accepted: dsl.Input[dsl.Dataset],
    registration: dsl.Output[dsl.Artifact],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Register the trained policy as a model version with the alias `challenger`.

    Args:
        profile_json: the resolved profile.
        evaluation: results on the held-out suite, from `evaluate`.
        trained_policy: model directory, from `train`.
        accepted: tasks and trajectories that passed, from `validate`.
        registration: name, version and digests of the model version.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("register", profile_json, usage.log_metric) as step:
        from espalier.registry import stage

        inputs = stage.Inputs(
            evaluation=Path(evaluation.path),
            trained_policy=Path(trained_policy.path),
            accepted=Path(accepted.path),
        )
        stage.run(step.profile, inputs, Path(registration.path), step.tracker)
