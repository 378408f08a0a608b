"""Scores outputs with inspect_evals' own tasks; run in a venv of its own, knows no espalier.

    python theirs.py JOBS DATA: verdicts on standard output.

JOBS is JSON, {task: [{"record": ..., "id": ..., "outputs": {kind: output}}]}; DATA is the folder of
public data, from which BFCL's rows are read. Answered is {task: {scorer: [{kind: [value, why]}]}}.
Rows become samples by the tasks' own readers, and the scorers are those of the tasks. Rules are
called with the state that a solver would leave; what runs programs is evaluated by Inspect in its
local sandbox.
"""

import asyncio
import importlib
import json
import logging
import sys
import tempfile
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai._util.registry import registry_info
from inspect_ai.dataset import MemoryDataset
from inspect_ai.model import ChatMessageAssistant, ModelOutput
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState, solver
from inspect_ai.tool import ToolCall, ToolDef

SOURCES = "bfcl_eval/eval_checker/multi_turn_eval/func_source_code"
PREFIX = "from bfcl_eval.eval_checker.multi_turn_eval.func_source_code."
NEEDS_MODEL = {"expression_equivalance"}
RUNS_PROGRAMS = {"humaneval", "mbpp"}


class NoShots(list):
    def filter(self, _keep):
        return self


def made_task(name, records):
    """The task as its package makes it, over these records in the place of a downloaded set."""
    module = importlib.import_module(f"inspect_evals.{name}.{name}")

    def samples(*_, sample_fields, **__):
        return MemoryDataset([sample_fields(record) for record in records])

    for door in ("hf_dataset", "load_dataset"):
        if hasattr(module, door):
            setattr(module, door, samples if door == "hf_dataset" else lambda *_, **__: NoShots())
    options = {"humaneval": {"sandbox": "local"}, "gsm8k": {"fewshot": 0}}.get(name, {})
    if name in ("math", "squad"):
        options = {"shuffle": False}
    return getattr(module, name)(**options)


def without_hurry():
    """Five seconds by the clock are too few for sympy on a machine that is busy."""
    utils = importlib.import_module("inspect_evals.math.utils")
    alarm = utils.timeout
    utils.timeout = lambda seconds: alarm(seconds=60 * seconds)


def scorers_of(task):
    """Name -> scorer, those left out that ask a model."""
    found = task.scorer if isinstance(task.scorer, list) else [task.scorer]
    named = {registry_info(one).name.rpartition("/")[2]: one for one in found}
    return {name: one for name, one in named.items() if name not in NEEDS_MODEL}


def state_of(sample, output=None):
    text = output if isinstance(output, str) else ""
    state = TaskState(
        model="given/given", sample_id="given", epoch=1, input=sample.input, messages=[],
        target=Target(sample.target), metadata=dict(sample.metadata or {}),
    )  # fmt: skip
    state.output = ModelOutput.from_content("given", text)
    return state


def verdict(score):
    value = {"C": 1.0, "I": 0.0}.get(score.value, score.value)
    return [float(value), (score.explanation or "")[:300]]


async def by_rules(task, jobs):
    answers = {}
    for name, score in scorers_of(task).items():
        answers[name] = [
            {
                kind: verdict(await score(state_of(sample, output), Target(sample.target)))
                for kind, output in job["outputs"].items()
            }
            for sample, job in zip(task.dataset, jobs, strict=True)
        ]
    return answers


def by_programs(task, jobs):
    samples, places = [], []
    for number, (sample, job) in enumerate(zip(task.dataset, jobs, strict=True)):
        for kind, output in job["outputs"].items():
            given = {**(sample.metadata or {}), "given": output}
            samples.append(sample.model_copy(update={"id": f"{number}/{kind}", "metadata": given}))
            places.append((number, kind))
    played = Task(dataset=MemoryDataset(samples), solver=say(), scorer=task.scorer, sandbox="local")
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(
            played, model="mockllm/model", display="none", log_level="error", log_dir=logs,
            log_realtime=False, max_samples=4, max_subprocesses=2,
        )  # fmt: skip
        assert log.status == "success", log.error
        scored = {one.id: one.scores["verify"] for one in log.samples}  # reads the file now
    answers = [{} for _ in jobs]
    for number, kind in places:
        answers[number][kind] = verdict(scored[f"{number}/{kind}"])
    return {"verify": answers}


@solver
def say():
    async def solve(state, generate):
        del generate
        state.output = ModelOutput.from_content("given", state.metadata["given"])
        return state

    return solve


# ------------------------------------------------------------------------------------ bfcl


async def bfcl(category, jobs, data):
    from inspect_evals.bfcl.data import load_records_by_category

    package = importlib.import_module("inspect_evals.bfcl.bfcl")
    rows = load_records_by_category(category_name=category, cache_dir=data / "bfcl_v4")
    is_talk = category.startswith("multi_turn")
    to_sample = (
        package.multi_turn_record_to_sample if is_talk else package.single_turn_record_to_sample
    )
    score = package.bfcl_scorer()
    answers = []
    for job in jobs:
        sample = to_sample(rows[job["id"]])
        found = {}
        for kind, output in job["outputs"].items():
            state = state_of(sample)
            if is_talk:
                state = await package.multi_turn_solve(state, Scripted(output).generate)
            else:
                state.messages.append(called(output))
            found[kind] = verdict(await score(state, Target(sample.target)))
        answers.append(found)
    return {"bfcl_scorer": answers}


def called(calls):
    made = [
        ToolCall(id=str(number), function=call["name"], arguments=call["arguments"])
        for number, call in enumerate(calls)
    ]
    return ChatMessageAssistant(content="", tool_calls=made)


class Scripted:
    """A model that makes the given calls turn by turn, with the tools that the solver offers."""

    def __init__(self, turns):
        self.turns = list(turns)

    async def generate(self, state, tool_calls):
        assert tool_calls == "loop"
        tools = {ToolDef(tool).name: tool for tool in state.tools}
        for call in self.turns.pop(0):
            if call["name"] in tools:
                await tools[call["name"]](**call["arguments"])
        return state


def set_up_services(folder):
    """BFCL's services from the package bfcl-eval, as the task makes them from a checkout."""
    from inspect_evals.bfcl.backends import setup_backend_classes

    (source,) = [Path(one, SOURCES) for one in sys.path if Path(one, SOURCES).is_dir()]
    for path in source.glob("*.py"):
        text = path.read_text(encoding="utf-8").replace(PREFIX, "from ")
        Path(folder, path.name).write_text(text, encoding="utf-8")
    setup_backend_classes(Path(folder))


def main(jobs, data):
    logging.disable(logging.WARNING)
    without_hurry()
    asked = json.loads(Path(jobs).read_text())
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        if any(name.startswith("bfcl/multi_turn") for name in asked):
            set_up_services(folder)
        for name, rows in asked.items():
            if name.startswith("bfcl/"):
                answers[name] = asyncio.run(bfcl(name.partition("/")[2], rows, Path(data)))
                continue
            task = made_task(name, [row["record"] for row in rows])
            if name in RUNS_PROGRAMS:
                answers[name] = by_programs(task, rows)
            else:
                answers[name] = asyncio.run(by_rules(task, rows))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
