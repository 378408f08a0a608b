"""The `validate` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def validate(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    synthetic: dsl.Input[dsl.Dataset],
    accepted: dsl.Output[dsl.Dataset],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Check tasks and trajectories; a failing critical expectation stops the run.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        synthetic: tasks and trajectories, from `synthesize`.
        accepted: tasks and trajectories that passed.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("validate", profile_json, usage.log_metric) as step:
        from espalier.validation import stage

        inputs = stage.Inputs(knowledge=Path(knowledge.path), synthetic=Path(synthetic.path))
        stage.run(step.profile, inputs, Path(accepted.path), step.tracker)
