"""The `prepare_policy` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare_policy(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Output[dsl.Model],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Make the base policy: embedded, a given model directory, or the champion.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        base_policy: model directory.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("prepare_policy", profile_json, usage.log_metric) as step:
        from espalier.steps.starting_policy import with_starting_policy
        from espalier.training.prepare_policy import stage

        inputs = stage.Inputs(knowledge=Path(knowledge.path), accepted=Path(accepted.path))
        profile = with_starting_policy(step.profile, Path(base_policy.path).parent)
        stage.run(profile, inputs, Path(base_policy.path), step.tracker)
