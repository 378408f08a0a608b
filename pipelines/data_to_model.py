"""From a knowledge source and a base policy to an evaluated, registered agent, on Kubeflow."""

from kfp import dsl

from espalier.steps.continue_pretraining import continue_pretraining
from espalier.steps.evaluate import evaluate
from espalier.steps.filter_curriculum import filter_curriculum
from espalier.steps.ingest import ingest
from espalier.steps.placement import place_pod, training_step
from espalier.steps.prepare_policy import prepare_policy
from espalier.steps.register import register
from espalier.steps.resolve_profile import resolve_profile
from espalier.steps.synthesize import synthesize
from espalier.steps.validate import validate
from espalier.steps.warm_start import warm_start


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
    knowledge = _step(ingest(profile_json=config)).outputs["knowledge"]
    synthetic = _step(synthesize(profile_json=config, knowledge=knowledge)).outputs["synthetic"]
    validated = _step(validate(profile_json=config, knowledge=knowledge, synthetic=synthetic))
    accepted = validated.outputs["accepted"]
    data = {"profile_json": config, "knowledge": knowledge, "accepted": accepted}
    base_policy = _step(prepare_policy(**data)).outputs["base_policy"]
    pretrained = _step(
        continue_pretraining(profile_json=config, accepted=accepted, base_policy=base_policy)
    )
    warmed = _step(warm_start(**data, base_policy=pretrained.outputs["pretrained_policy"]))
    warm_policy = warmed.outputs["warm_policy"]
    filtered = _step(filter_curriculum(**data, warm_policy=warm_policy))
    trained = _step(
        training_step()(**data, curriculum=filtered.outputs["curriculum"], warm_policy=warm_policy)
    )
    trained_policy = trained.outputs["trained_policy"]
    evaluated = _step(
        evaluate(
            **data,
            base_policy=base_policy,
            warm_policy=warm_policy,
            trained_policy=trained_policy,
        )
    )
    _step(
        register(
            profile_json=config,
            evaluation=evaluated.outputs["evaluation"],
            trained_policy=trained_policy,
            accepted=accepted,
        )
    )
