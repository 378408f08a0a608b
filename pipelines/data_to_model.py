"""From a knowledge source and a base policy to an evaluated, registered agent, on Kubeflow.

The stages, and which artifact feeds which, are those of `espalier.chain`. Kubeflow's page shows
them in three parts, each a pipeline of its own that a click opens:

    data       ingest -> synthesize -> validate -> require_valid
    training   prepare_policy -> continue_pretraining -> warm_start -> filter_curriculum -> train
    judgement  evaluate -> register

`require_valid` fails where rows were refused, and its part with it, so that nothing is trained.
"""

from functools import partial
from typing import NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from espalier.chain import STAGES
from espalier.config import KubernetesConfig
from espalier.steps.components import require_valid, resolve_profile
from espalier.steps.placement import place_pod, step_component
from espalier.steps.profiles import profiles_named


class Data(NamedTuple):
    """What training and judgement read of the data."""

    knowledge: dsl.Dataset
    accepted: dsl.Dataset


class Policies(NamedTuple):
    """The policies that are judged on the same questions."""

    base_policy: dsl.Model
    warm_policy: dsl.Model
    trained_policy: dsl.Model


def uncached(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """A step or part that always runs.

    Kubeflow's cache key holds the names of input artifacts and not their content: a hit after the
    knowledge source or the champion has changed would be wrong.
    """
    return task.set_caching_options(enable_caching=False)


def step(task: dsl.PipelineTask, settings: KubernetesConfig | None) -> dsl.PipelineTask:
    """A step in a pod with these settings; None where it runs in no pod."""
    if settings is not None:
        place_pod(task, settings)
    return uncached(task)


def run_stages(
    *names: str, settings: KubernetesConfig | None, profile_json: str, **artifacts: dsl.Artifact
) -> dict[str, dsl.Artifact]:
    """Steps of these stages; returns the given artifacts and those that they make."""
    for stage in map(STAGES.__getitem__, names):
        component = step_component(stage, settings)
        inputs = {folder: artifacts[folder] for folder in stage.inputs}
        task = step(component(profile_json=profile_json, **inputs), settings)
        artifacts[stage.output] = task.outputs[stage.output]
        if stage.judges:
            verdict = {name: task.outputs[name] for name in ("verdict", "page")}
            step(require_valid(**verdict), settings)
    return artifacts


def data_to_model(settings: KubernetesConfig | None) -> BaseComponent:
    """The pipeline whose steps run in pods with these settings; None where no pod runs."""
    run = partial(run_stages, settings=settings)

    @dsl.pipeline
    def data(profile_json: str) -> Data:
        """Questions with proven answers and demonstrations, from the knowledge source."""
        made = run("ingest", "synthesize", "validate", profile_json=profile_json)
        return Data(knowledge=made["knowledge"], accepted=made["accepted"])

    @dsl.pipeline
    def training(
        profile_json: str, knowledge: dsl.Input[dsl.Dataset], accepted: dsl.Input[dsl.Dataset]
    ) -> Policies:
        """The base policy, what it learns from demonstrations, and what from its own episodes."""
        made = run(
            "prepare_policy", "continue_pretraining", "warm_start", "filter_curriculum", "train",
            profile_json=profile_json, knowledge=knowledge, accepted=accepted,
        )  # fmt: skip
        return Policies(**{name: made[name] for name in Policies._fields})

    @dsl.pipeline
    def judgement(
        profile_json: str,
        knowledge: dsl.Input[dsl.Dataset],
        accepted: dsl.Input[dsl.Dataset],
        base_policy: dsl.Input[dsl.Model],
        warm_policy: dsl.Input[dsl.Model],
        trained_policy: dsl.Input[dsl.Model],
    ) -> None:
        """All policies on the same held-out questions, and a version of the model registry."""
        run(
            "evaluate", "register", profile_json=profile_json, knowledge=knowledge,
            accepted=accepted, base_policy=base_policy, warm_policy=warm_policy,
            trained_policy=trained_policy,
        )  # fmt: skip

    @dsl.pipeline(name="data-to-model", display_name="espalier: data to model")
    @profiles_named
    def pipeline(  # noqa: PLR0913 (a pipeline's arguments are the fields of its form)
        profile: str = "laptop",
        seed: int = 0,
        knowledge_path: str = "",
        base_model: str = "",
        demonstrations: str = "",
        heldout_questions: str = "",
        algorithm: str = "",
        training_steps: str = "",
        tasks_per_step: str = "",
        group_size: str = "",
        learning_rate: str = "",
        overrides: str = "",
    ) -> None:
        """One run turns a knowledge source and a base policy into an evaluated, registered agent.

        A field that is left empty takes the value of the profile. Fields of numbers are texts, since
        Kubeflow's form starts no run while a number is empty.

        Args:
            profile: Run profile of the image ({profiles}), or the JSON of a whole one.
            seed: Seed of every stage, instead of the profile's; equal seeds make equal artifacts.
            knowledge_path: Folder or dump of documents (knowledge.path), for a profile with knowledge of its own.
            base_model: Hugging Face model directory in the image or on a volume, or NAME@DIGEST as
                `espalier models push` prints it (policy.model).
            demonstrations: Teacher trajectories that the warm start imitates (synthesis.trajectories).
            heldout_questions: Questions that the policies are judged on (synthesis.heldout_tasks).
            algorithm: Preset of the learning rules, such as grpo, dapo or gspo (training.algorithm.preset).
            training_steps: Optimizer steps of reinforcement learning (training.steps).
            tasks_per_step: Tasks that a step samples (training.tasks_per_step).
            group_size: Trajectories of a task in a step (training.group_size).
            learning_rate: Peak learning rate of reinforcement learning (training.optimizer.learning_rate).
            overrides: Any other keys, as section.key=value; section.key=value
        """  # noqa: E501 (kfp reads the description of an argument from one line)
        config = step(
            resolve_profile(
                profile=profile,
                seed=seed,
                knowledge_path=knowledge_path,
                base_model=base_model,
                demonstrations=demonstrations,
                heldout_questions=heldout_questions,
                algorithm=algorithm,
                training_steps=training_steps,
                tasks_per_step=tasks_per_step,
                group_size=group_size,
                learning_rate=learning_rate,
                overrides=overrides,
            ),
            settings,
        ).outputs["Output"]
        questions = uncached(data(profile_json=config)).outputs
        policies = uncached(training(profile_json=config, **questions)).outputs
        uncached(judgement(profile_json=config, **questions, **policies))

    return pipeline
