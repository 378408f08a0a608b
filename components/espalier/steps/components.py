"""The Kubeflow components: resolve_profile, one per stage and its launcher, and require_valid.

KFP copies the source of a component's function into the pipeline, and reads its inputs and outputs
from the signature: so each stage has a function here, and each function imports what it needs.
"""

# without `from __future__ import annotations`: kfp reads annotations as types
# ruff: noqa: PLR0913 (a component's arguments are its inputs, outputs and fields)
# ruff: noqa: D103 (the chain describes its stages: `_stage`)

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from kfp import dsl

from espalier.chain import STAGES
from espalier.config import ImagesConfig

IMAGE = ImagesConfig().cpu


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_profile(
    profile: str,
    seed: int,
    settings: dsl.Output[dsl.Markdown],
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
) -> str:
    """Read the profile, apply the form's changes, and return what it says as JSON.

    Args:
        profile: name of a profile in the image, or the JSON of a whole profile.
        seed: replaces the profile's own.
        settings: what the profile says, for a reader.
        knowledge_path: replaces knowledge.path.
        base_model: replaces policy.model.
        demonstrations: replaces synthesis.trajectories.
        heldout_questions: replaces synthesis.heldout_tasks.
        algorithm: replaces training.algorithm.preset.
        training_steps: replaces training.steps.
        tasks_per_step: replaces training.tasks_per_step.
        group_size: replaces training.group_size.
        learning_rate: replaces training.optimizer.learning_rate.
        overrides: section.key=value, several separated by semicolons.
    """
    from espalier.steps.profiles import resolved_profile, settings_markdown, stated_json
    from espalier.steps.refusing import FailureMessage

    form = {
        "knowledge_path": knowledge_path,
        "base_model": base_model,
        "demonstrations": demonstrations,
        "heldout_questions": heldout_questions,
        "algorithm": algorithm,
        "training_steps": training_steps,
        "tasks_per_step": tasks_per_step,
        "group_size": group_size,
        "learning_rate": learning_rate,
    }
    with FailureMessage("resolve_profile"):
        resolved = resolved_profile(profile, seed=seed, overrides=overrides, form=form)
    with open(settings.path, "w", encoding="utf-8") as written:
        written.write(settings_markdown(resolved))
    return stated_json(resolved)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def require_valid(verdict: str, page: dsl.Input[dsl.HTML]) -> None:
    """End the run where validation refused rows, with what failed; else do nothing.

    Args:
        verdict: faults as a JSON list, from `validate`.
        page: the report, from `validate`.
    """
    from espalier.steps.running import require_valid

    require_valid(verdict, page.uri)


_SHOWN = {
    "page": "the result as a page",
    "summary": "the result in words",
    "verdict": "why rows were refused, as a JSON list",
}
_stages: dict[str, Any] = {}


def _stage(function: Callable[..., None]) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component of a stage, described in Kubeflow's pages as the chain describes it."""
    stage = STAGES[function.__name__]
    function.__doc__ = _description(stage.summary, inspect.signature(function).parameters)
    made = dsl.component(function, base_image=IMAGE, install_kfp_package=False)
    _stages[stage.name] = made
    return made


def _description(summary: str, parameters: Iterable[str]) -> str:
    """A docstring from which kfp takes what its pages say of a component and its parameters."""
    makers = {stage.output: stage for stage in STAGES.values()}
    texts = {"profile_json": "the resolved profile", **_SHOWN}
    texts |= {
        folder: f"{made.output_summary}, from `{made.name}`" for folder, made in makers.items()
    }
    arguments = "".join(f"    {name}: {texts[name]}.\n" for name in parameters)
    return f"{summary}\n\nArgs:\n{arguments}"


@_stage
def ingest(
    profile_json: str,
    knowledge: dsl.Output[dsl.Dataset],
) -> None:
    from espalier.steps.running import run_stage

    run_stage("ingest", profile_json, {}, knowledge.path, knowledge.metadata)


@_stage
def synthesize(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    synthetic: dsl.Output[dsl.Dataset],
) -> None:
    from espalier.steps.running import run_stage

    inputs = {"knowledge": knowledge.path}
    run_stage("synthesize", profile_json, inputs, synthetic.path, synthetic.metadata)


@_stage
def validate(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    synthetic: dsl.Input[dsl.Dataset],
    accepted: dsl.Output[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
    verdict: dsl.OutputPath(str),  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {"knowledge": knowledge.path, "synthetic": synthetic.path}
    shown = ShownOutputs(page=page.path, verdict=verdict)
    run_stage("validate", profile_json, inputs, accepted.path, accepted.metadata, shown)


@_stage
def prepare_policy(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {"knowledge": knowledge.path, "accepted": accepted.path}
    shown = ShownOutputs(page=page.path)
    run_stage("prepare_policy", profile_json, inputs, base_policy.path, base_policy.metadata, shown)


@_stage
def continue_pretraining(
    profile_json: str,
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Input[dsl.Model],
    pretrained_policy: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {"accepted": accepted.path, "base_policy": base_policy.path}
    shown = ShownOutputs(page=page.path)
    run_stage(
        "continue_pretraining",
        profile_json,
        inputs,
        pretrained_policy.path,
        pretrained_policy.metadata,
        shown,
    )


@_stage
def warm_start(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    pretrained_policy: dsl.Input[dsl.Model],
    warm_policy: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {
        "knowledge": knowledge.path,
        "accepted": accepted.path,
        "pretrained_policy": pretrained_policy.path,
    }
    shown = ShownOutputs(page=page.path)
    run_stage("warm_start", profile_json, inputs, warm_policy.path, warm_policy.metadata, shown)


@_stage
def filter_curriculum(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    warm_policy: dsl.Input[dsl.Model],
    curriculum: dsl.Output[dsl.Dataset],
) -> None:
    from espalier.steps.running import run_stage

    inputs = {
        "knowledge": knowledge.path,
        "accepted": accepted.path,
        "warm_policy": warm_policy.path,
    }
    run_stage("filter_curriculum", profile_json, inputs, curriculum.path, curriculum.metadata)


@_stage
def train(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    curriculum: dsl.Input[dsl.Dataset],
    warm_policy: dsl.Input[dsl.Model],
    trained_policy: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {
        "knowledge": knowledge.path,
        "accepted": accepted.path,
        "curriculum": curriculum.path,
        "warm_policy": warm_policy.path,
    }
    shown = ShownOutputs(page=page.path)
    run_stage("train", profile_json, inputs, trained_policy.path, trained_policy.metadata, shown)


@_stage
def evaluate(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    base_policy: dsl.Input[dsl.Model],
    warm_policy: dsl.Input[dsl.Model],
    trained_policy: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {
        "knowledge": knowledge.path,
        "accepted": accepted.path,
        "base_policy": base_policy.path,
        "warm_policy": warm_policy.path,
        "trained_policy": trained_policy.path,
    }
    shown = ShownOutputs(page=page.path)
    run_stage("evaluate", profile_json, inputs, evaluation.path, evaluation.metadata, shown)


@_stage
def register(
    profile_json: str,
    evaluation: dsl.Input[dsl.Dataset],
    trained_policy: dsl.Input[dsl.Model],
    accepted: dsl.Input[dsl.Dataset],
    registration: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> None:
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {
        "evaluation": evaluation.path,
        "trained_policy": trained_policy.path,
        "accepted": accepted.path,
    }
    shown = ShownOutputs(summary=summary.path)
    run_stage("register", profile_json, inputs, registration.path, registration.metadata, shown)


LAUNCHES = "launch_"
"""Prefix of the names of components that launch a stage."""


def stage_component(name: str) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component of the stage `name`, whose parameters are named after its artifacts."""
    return _stages[name]


def launching_component(name: str) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component that launches the stage `name` elsewhere, with the same inputs and output.

    Inputs and output are passed as URIs, because the launched object fetches and publishes them.
    The pipeline's root must therefore be in S3 (s3://...), which its nodes can reach.
    """
    stage = STAGES[name]
    signature = inspect.signature(_stages[name].python_func)
    passed = ("profile_json", *stage.inputs, stage.output)

    def launch(*arguments: Any) -> dsl.ContainerSpec:  # noqa: ANN401 (kfp's placeholders)
        values = dict(zip(passed, arguments, strict=True))
        output = values[stage.output].uri
        # Placeholders are inside of strings: Kubeflow's server would pass a dsl.ConcatPlaceholder
        # as JSON.
        given = [("--input", f"{folder}={values[folder].uri}") for folder in stage.inputs]
        return dsl.ContainerSpec(
            image=IMAGE,
            command=["espalier", "step", name],
            args=[
                *("--profile", values["profile_json"]),
                # what the step notes about itself must not lie inside of the artifact
                *("--run", f"{output}-run"),
                *(word for pair in given for word in pair),
                *("--output", output),
            ],
        )

    launch.__name__ = f"{LAUNCHES}{name}"
    launch.__doc__ = _description(
        f"{stage.summary} It runs as another object of the cluster.", passed
    )
    parameters = [signature.parameters[parameter] for parameter in passed]
    launch.__signature__ = inspect.Signature(parameters, return_annotation=dsl.ContainerSpec)
    return dsl.container_component(launch)
