"""The Kubeflow component of each stage, made from `espalier.chain`.

KFP copies the source of a component's function into the pipeline. All stages have the same body, so
their functions are written from one template; the source is registered with `linecache`, where
`inspect.getsource` finds it.
"""

from __future__ import annotations

import linecache
from functools import lru_cache
from typing import Any

from kfp import dsl

from espalier.chain import STAGES, Stage
from espalier.steps.image import IMAGE

_KINDS = {"dataset": "Dataset", "model": "Model", "artifact": "Artifact"}
_TEMPLATE = '''\
def {name}(
    profile_json: str,
{inputs}    {output}: dsl.Output[dsl.{kind}],
    usage: dsl.Output[dsl.Metrics],
) -> None:
    """{summary}

    Args:
        profile_json: the resolved profile.
{documented}        {output}: {output_summary}.
        usage: seconds and peak memory of this step.
    """
    from espalier.steps.running import run_stage

    inputs = {{{passed}}}
    run_stage("{name}", profile_json, inputs, {output}.path, usage.log_metric)
'''


@lru_cache(maxsize=len(STAGES))
def stage_component(name: str) -> Any:  # noqa: ANN401 (kfp's component is untyped)
    """The component of the stage `name`: its inputs and its output are artifacts of their names."""
    stage = STAGES[name]
    source = _source(stage)
    filename = f"<espalier step {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"dsl": dsl}
    # the source is the template above, filled in from the chain; kfp wants its annotations as
    # types, which the `annotations` of this module would turn into text
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return dsl.component(namespace[name], base_image=IMAGE, install_kfp_package=False)


def _source(stage: Stage) -> str:
    by_folder = {other.output: other for other in STAGES.values()}
    kinds = {folder: _KINDS[by_folder[folder].output_kind] for folder in stage.inputs}
    return _TEMPLATE.format(
        name=stage.name,
        summary=stage.summary,
        inputs="".join(f"    {f}: dsl.Input[dsl.{kind}],\n" for f, kind in kinds.items()),
        documented="".join(
            f"        {f}: {by_folder[f].output_summary}, from `{by_folder[f].name}`.\n"
            for f in stage.inputs
        ),
        passed=", ".join(f'"{f}": {f}.path' for f in stage.inputs),
        output=stage.output,
        output_summary=stage.output_summary,
        kind=_KINDS[stage.output_kind],
    )
