"""The `synthesize` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def synthesize(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    synthetic: dsl.Output[dsl.Dataset],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Draw questions from formal queries and let the teacher answer some of them.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        synthetic: tasks and trajectories.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("synthesize", profile_json, usage.log_metric) as step:
        from espalier.synthesis import stage

        inputs = stage.Inputs(knowledge=Path(knowledge.path))
        stage.run(step.profile, inputs, Path(synthetic.path), step.tracker)
