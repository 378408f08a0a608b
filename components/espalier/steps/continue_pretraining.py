"""The `continue_pretraining` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def continue_pretraining(
    profile_json: str,
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Input[dsl.Model],
    pretrained_policy: dsl.Output[dsl.Model],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Read on: next-token training on agent texts, where the profile asks for it.

    Args:
        profile_json: the resolved profile.
        accepted: agent texts that passed, from `validate`.
        base_policy: model directory, from `prepare_policy`.
        pretrained_policy: model directory.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("continue_pretraining", profile_json, usage.log_metric) as step:
        from espalier.training.continue_pretraining import stage

        inputs = stage.Inputs(accepted=Path(accepted.path), base_policy=Path(base_policy.path))
        stage.run(step.profile, inputs, Path(pretrained_policy.path), step.tracker)
