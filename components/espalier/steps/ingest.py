"""The `ingest` step."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def ingest(
    profile_json: str,
    knowledge: dsl.Output[dsl.Dataset],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """Read the knowledge source into triples, documents and search indexes.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes.
        usage: seconds and peak memory of this step.
    """
    from pathlib import Path

    from espalier.steps.running import running

    with running("ingest", profile_json, usage.log_metric) as step:
        from espalier.knowledge import stage

        inputs = stage.Inputs()
        stage.run(step.profile, inputs, Path(knowledge.path), step.tracker)
