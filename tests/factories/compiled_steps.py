"""The steps of a compiled pipeline, whatever pipelines they are nested in."""

from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

Output = tuple[str, str]
"""A step and the name of its output; of a field of the run's form, "" and the field."""


class CompiledStep(NamedTuple):
    """A task that runs in a container."""

    task: Mapping[str, Any]
    component: Mapping[str, Any]
    inputs: Mapping[str, Output]
    """Artifacts and parameters, with the step that made each; constants are left out."""
    after: frozenset[str]
    """Steps that have to succeed before it begins."""
    part: str = ""
    """The nested pipeline that it is in."""


def compiled_steps(pipeline: Mapping[str, Any]) -> dict[str, CompiledStep]:
    """Step -> what the pipeline says of it, in an order in which they can run."""
    fields = pipeline["root"]["inputDefinitions"]["parameters"]
    return _steps(
        pipeline["components"], pipeline["root"]["dag"], {name: ("", name) for name in fields}
    )


def _steps(
    components: Mapping[str, Any],
    dag: Mapping[str, Any],
    given: Mapping[str, Output],
    after: frozenset[str] = frozenset(),
    part: str = "",
) -> dict[str, CompiledStep]:
    found: dict[str, CompiledStep] = {}
    ends: dict[str, frozenset[str]] = {}
    made: dict[Output, Output] = {}
    waits = {name: task.get("dependentTasks", ()) for name, task in dag["tasks"].items()}
    for name in TopologicalSorter(waits).static_order():
        task = dag["tasks"][name]
        component = components[task["componentRef"]["name"]]
        before = after.union(*(ends[one] for one in waits[name]))
        inputs = dict(_sources(task, given, made))
        inner = component.get("dag")
        if inner is None:
            found[name] = CompiledStep(task, component, inputs, before, part)
            ends[name] = before | {name}
            continue
        nested = _steps(components, inner, inputs, before, name)
        found |= nested
        ends[name] = before | nested.keys()
        for key, output in inner.get("outputs", {}).get("artifacts", {}).items():
            (selected,) = output["artifactSelectors"]
            made[name, key] = selected["producerSubtask"], selected["outputArtifactKey"]
    return found


def _sources(
    task: Mapping[str, Any], given: Mapping[str, Output], made: Mapping[Output, Output]
) -> Iterator[tuple[str, Output]]:
    read = task.get("inputs", {})
    for name, source in (read.get("artifacts", {}) | read.get("parameters", {})).items():
        match source:
            case {"componentInputArtifact": outer} | {"componentInputParameter": outer}:
                yield name, given[outer]
            case {"taskOutputArtifact": output}:
                one = output["producerTask"], output["outputArtifactKey"]
                yield name, made.get(one, one)
            case {"taskOutputParameter": output}:
                yield name, (output["producerTask"], output["outputParameterKey"])
