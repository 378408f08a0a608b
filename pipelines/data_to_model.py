"""From a knowledge source and a base policy to an evaluated, registered agent, on Kubeflow.

The stages, and which artifact feeds which, are those of `espalier.chain`:

    ingest -> synthesize -> validate -> prepare_policy -> continue_pretraining -> warm_start
           -> filter_curriculum -> train -> evaluate -> register
"""

from kfp import dsl

from espalier.chain import CHAIN
from espalier.steps.placement import place_pod, step_component
from espalier.steps.resolve_profile import resolve_profile


def _step(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """A step that always runs, in a pod as the profile wants it.

    Kubeflow's cache key holds the names of input artifacts and not their content: a hit after the
    knowledge source or the champion has changed would be wrong.
    """
    task.set_caching_options(enable_caching=False)
    place_pod(task)
    return task


@dsl.pipeline(name="data-to-model", display_name="espalier: data to model")
def data_to_model(profile: str = "laptop", seed: int = 0, overrides: str = "") -> None:
    """One run turns a knowledge source and a base policy into an evaluated, registered agent.

    Args:
        profile: Name of a run profile in the image (laptop, smoke), or the JSON of a whole one.
        seed: Seed of every stage, instead of the profile's; equal seeds make equal artifacts.
        overrides: section.key=value; section.key=value ..., e.g. training.steps=200
    """
    config = _step(resolve_profile(profile=profile, seed=seed, overrides=overrides)).output
    artifacts = {}
    for stage in CHAIN:
        inputs = {folder: artifacts[folder] for folder in stage.inputs}
        task = _step(step_component(stage)(profile_json=config, **inputs))
        artifacts[stage.output] = task.outputs[stage.output]
