"""The `warm_start` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def warm_start(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Input[dsl.Model],
    warm_policy: dsl.Output[dsl.Model],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Imitate the teacher's actions (masked SFT).

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        base_policy: model directory, from `continue_pretraining`.
        warm_policy: model directory.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("warm_start", profile_json, usage.log_metric) as step:
        from espalier.training.warm_start import stage

        inputs = stage.Inputs(
            knowledge=Path(knowledge.path),
            accepted=Path(accepted.path),
            base_policy=Path(base_policy.path),
        )
        stage.run(step.profile, inputs, Path(warm_policy.path), step.tracker)
