"""From a knowledge source and a base policy to an evaluated, registered agent, on Kubeflow."""

from kfp import dsl

from espalier.steps.evaluate import evaluate
from espalier.steps.filter_curriculum import filter_curriculum
from espalier.steps.ingest import ingest
from espalier.steps.prepare_policy import prepare_policy
from espalier.steps.register import register
from espalier.steps.resolve_profile import resolve_profile
from espalier.steps.synthesize import synthesize
from espalier.steps.train import train
from espalier.steps.validate import validate
from espalier.steps.warm_start import warm_start


def _never_cached(*tasks: dsl.PipelineTask) -> None:
    """Kubeflow's cache key holds the names of input artifacts and not their content.

    A hit after the knowledge source or the champion has changed would be wrong.
    """
    for task in tasks:
        task.set_caching_options(enable_caching=False)


@dsl.pipeline(name="data-to-model", display_name="espalier: data to model")
def data_to_model(profile: str = "laptop", seed: int = 0, overrides: str = "") -> None:
    """One run turns a knowledge source and a base policy into an evaluated, registered agent.

    Args:
        profile: Name of a run profile in the image (laptop, smoke), or the JSON of a whole one.
        seed: Seed of every stage, instead of the profile's; equal seeds make equal artifacts.
        overrides: section.key=value; section.key=value ..., e.g. training.steps=200
    """
    resolved = resolve_profile(profile=profile, seed=seed, overrides=overrides)
    config = resolved.output
    ingested = ingest(profile_json=config)
    knowledge = ingested.outputs["knowledge"]
    synthesized = synthesize(profile_json=config, knowledge=knowledge)
    validated = validate(
        profile_json=config, knowledge=knowledge, synthetic=synthesized.outputs["synthetic"]
    )
    accepted = validated.outputs["accepted"]
    prepared = prepare_policy(profile_json=config, knowledge=knowledge, accepted=accepted)
    base_policy = prepared.outputs["base_policy"]
    warmed = warm_start(
        profile_json=config, knowledge=knowledge, accepted=accepted, base_policy=base_policy
    )
    warm_policy = warmed.outputs["warm_policy"]
    filtered = filter_curriculum(
        profile_json=config, knowledge=knowledge, accepted=accepted, warm_policy=warm_policy
    )
    trained = train(
        profile_json=config,
        knowledge=knowledge,
        accepted=accepted,
        curriculum=filtered.outputs["curriculum"],
        warm_policy=warm_policy,
    )
    trained_policy = trained.outputs["trained_policy"]
    evaluated = evaluate(
        profile_json=config,
        knowledge=knowledge,
        accepted=accepted,
        base_policy=base_policy,
        warm_policy=warm_policy,
        trained_policy=trained_policy,
    )
    evaluation = evaluated.outputs["evaluation"]
    registered = register(
        profile_json=config, evaluation=evaluation, trained_policy=trained_policy, accepted=accepted
    )
    _never_cached(resolved, ingested, synthesized, validated, prepared)
    _never_cached(warmed, filtered, trained, evaluated, registered)
