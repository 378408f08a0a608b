"""From a knowledge source and a base policy to an evaluated, registered agent, on Kubeflow.

The stages, and which artifact feeds which, are those of `espalier.chain`:

    ingest -> synthesize -> validate -> prepare_policy -> continue_pretraining -> warm_start
           -> filter_curriculum -> train -> evaluate -> register

No stage after `validate` begins before `require_valid`, which ends the run where rows were refused.
"""

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from espalier.chain import CHAIN
from espalier.config import KubernetesConfig
from espalier.steps.components import require_valid, resolve_profile
from espalier.steps.placement import place_pod, step_component
from espalier.steps.profiles import profiles_named


def data_to_model(settings: KubernetesConfig | None) -> BaseComponent:
    """The pipeline whose steps run in pods with these settings; None where no pod runs."""

    def step(task: dsl.PipelineTask) -> dsl.PipelineTask:
        """A step that always runs, in a pod as the profile wants it.

        Kubeflow's cache key holds the names of input artifacts and not their content: a hit after
        the knowledge source or the champion has changed would be wrong.
        """
        task.set_caching_options(enable_caching=False)
        if settings is not None:
            place_pod(task, settings)
        return task

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
            )
        ).outputs["Output"]
        artifacts, checks = {}, []
        for stage in CHAIN:
            inputs = {folder: artifacts[folder] for folder in stage.inputs}
            task = step(step_component(stage, settings)(profile_json=config, **inputs)).after(
                *checks
            )
            artifacts[stage.output] = task.outputs[stage.output]
            if stage.judges:
                shown = {name: task.outputs[name] for name in ("verdict", "page")}
                checks.append(step(require_valid(**shown)))

    return pipeline
