"""The Kubeflow components: resolve_profile, one per stage and its launcher, and require_valid.

KFP copies the source of a component's function into the pipeline. The functions of all stages have
the same body, so they are made from one template; their source is registered with `linecache`,
where `inspect.getsource` finds it.
"""

# without `from __future__ import annotations`: kfp reads annotations as types

import linecache
from functools import lru_cache
from typing import Any, NamedTuple

from kfp import dsl

from espalier.chain import STAGES, Stage
from espalier.config import ImagesConfig

IMAGE = ImagesConfig().cpu


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_profile(  # noqa: PLR0913 (a component's arguments are the fields of its form)
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


_KINDS = {"dataset": "Dataset", "model": "Model", "artifact": "Artifact"}


class _Shown(NamedTuple):
    """A parameter of a component for one of `ShownOutputs`."""

    annotation: str
    value: str
    summary: str


_SHOWN = {
    "figures": _Shown("dsl.Output[dsl.Metrics]", "figures.log_metric", "figures of the result"),
    "page": _Shown("dsl.Output[dsl.HTML]", "page.path", "the result as a page"),
    "summary": _Shown("dsl.Output[dsl.Markdown]", "summary.path", "the result in words"),
    "verdict": _Shown("dsl.OutputPath(str)", "verdict", "why rows were refused, as a JSON list"),
}
_TEMPLATE = '''\
def {name}(
    profile_json: str,
{inputs}    {output}: dsl.Output[dsl.{kind}],
    usage: dsl.Output[dsl.Metrics],
{declared}) -> None:
    """{summary}

    Args:
        profile_json: the resolved profile.
{documented}        {output}: {output_summary}.
        usage: seconds and peak memory of this step.
{explained}    """
    from espalier.steps.running import ShownOutputs, run_stage

    inputs = {{{passed}}}
    shown = ShownOutputs({shown})
    run_stage("{name}", profile_json, inputs, {output}.path, usage.log_metric, shown)
'''


LAUNCHES = "launch_"
"""Prefix of the names of components that launch a stage."""
# Inputs and output are passed as URIs, because the launched object fetches and publishes them. The
# pipeline's root must therefore be in S3 (s3://...), which its nodes can reach.
# Placeholders are inside of strings: Kubeflow's server would pass a dsl.ConcatPlaceholder as JSON.
_LAUNCHING_TEMPLATE = '''\
def {launches}{name}(
    profile_json: str,
{inputs}    {output}: dsl.Output[dsl.{kind}],
) -> dsl.ContainerSpec:
    """{summary} It runs as another object of the cluster.

    Args:
        profile_json: the resolved profile.
{documented}        {output}: {output_summary}.
    """
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["espalier", "step", "{name}"],
        args=[
            "--profile", profile_json,
            # what the step notes about itself must not lie inside of the artifact
            "--run", f"{{{output}.uri}}-run",
{given}            "--output", {output}.uri,
        ],
    )
'''


@lru_cache(maxsize=len(STAGES))
def stage_component(name: str) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component of the stage `name`, whose parameters are named after its artifacts."""
    function = _defined(name, _source(STAGES[name]))
    return dsl.component(function, base_image=IMAGE, install_kfp_package=False)


@lru_cache(maxsize=len(STAGES))
def launching_component(name: str) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component that launches the stage `name` elsewhere, with the same inputs and output."""
    stage = STAGES[name]
    source = _LAUNCHING_TEMPLATE.format(
        launches=LAUNCHES,
        given="".join(
            f'            "--input", f"{folder}={{{folder}.uri}}",\n' for folder in stage.inputs
        ),
        **_interface(stage),
    )
    return dsl.container_component(_defined(f"{LAUNCHES}{name}", source))


def _defined(name: str, source: str) -> Any:  # noqa: ANN401 (a function of any signature)
    """The function `name` that `source` defines."""
    filename = f"<espalier step {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"dsl": dsl, "IMAGE": IMAGE}
    # the source is a template above, filled in from the chain
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return namespace[name]


def _interface(stage: Stage) -> dict[str, str]:
    """Fields of both templates: the stage's name, inputs and output."""
    by_folder = {other.output: other for other in STAGES.values()}
    kinds = {folder: _KINDS[by_folder[folder].output_kind] for folder in stage.inputs}
    return {
        "name": stage.name,
        "summary": stage.summary,
        "inputs": "".join(f"    {f}: dsl.Input[dsl.{kind}],\n" for f, kind in kinds.items()),
        "documented": "".join(
            f"        {f}: {by_folder[f].output_summary}, from `{by_folder[f].name}`.\n"
            for f in stage.inputs
        ),
        "output": stage.output,
        "output_summary": stage.output_summary,
        "kind": _KINDS[stage.output_kind],
    }


def _source(stage: Stage) -> str:
    shown = {name: _SHOWN[name] for name in (*stage.shows, *(["verdict"] if stage.judges else []))}
    return _TEMPLATE.format(
        passed=", ".join(f'"{f}": {f}.path' for f in stage.inputs),
        declared="".join(f"    {name}: {one.annotation},\n" for name, one in shown.items()),
        explained="".join(f"        {name}: {one.summary}.\n" for name, one in shown.items()),
        shown=", ".join(f"{name}={one.value}" for name, one in shown.items()),
        **_interface(stage),
    )
