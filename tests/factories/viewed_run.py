"""A run's folder as training and evaluation fill it, without a model: for the viewer."""

import asyncio
import json
import random
import time
from dataclasses import replace

import httpx2

from espalier.config import ServingConfig
from espalier.records import Message, ToolCall, work_dir, write_tasks
from espalier.records.episodes import EPISODES, EpisodePlace, UpdateView, episode_record
from espalier.records.spans import Span
from espalier.records.streams import STREAMS_FOLDER, StreamRecord, StreamWriter
from espalier.records.trajectory import FinishReason, ToolResult, Turn
from espalier_ui.app import ViewerApp
from espalier_ui.labels import LabelFile
from espalier_ui.runs import RunCatalog
from tests.factories.records import make_task, make_trajectory

NOW = 1_796_000_000.0
PROFILE = {
    "environment": {"name": "search_qa"},
    "policy": {"model": "/models/SmolLM2"},
    "training": {"steps": 9, "asynchronous": {"max_staleness": 0}},
}
HOSTILE = "<script>alert(1)</script>\u202e\x00\ud800 \x1b[2J ]]> ${1} " + "x" * 300


def attempt(task, number, *, right=True, text="country: france", **fields):
    """One attempt: a search, its result, and an answer; twelve tokens, five of them sampled."""
    call = ToolCall(name="search", arguments={"query": f"lyon {number}"})
    defaults = {
        "group_id": task,
        "messages": (
            Message(role="user", content=f"what is asked by {task}"),
            Message(role="assistant", thought="country", tool_calls=(call,)),
            Message(role="tool", content=text),
            Message(role="assistant", content="france" if right else "spain"),
        ),
        "tool_results": (ToolResult(call=call, content=text, succeeded=True),),
        "answer": "france" if right else "spain",
        "finish_reason": FinishReason.ANSWERED,
        "token_ids": (1, 2, 3, 10, 11 + number, 12, 4, 5, 6, 13, 14, 15),
        "action_mask": (0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0),
        "behavior_logprobs": (0, 0, 0, -0.5, -0.25, -1, 0, 0, 0, -0.125, -2, 0),
        "turns": (
            Turn(action_start=3, action_end=6, observation_end=9),
            Turn(action_start=9, action_end=11, observation_end=12),
        ),
        "spans": (
            Span("other", 0.0, 0.25, None), Span("waiting", 0.25, 0.5, None),
            Span("sampling", 0.5, 2.0, 0), Span("waiting", 2.0, 2.25, 0),
            Span("tools", 2.25, 3.0, 0), Span("sampling", 3.0, 4.0, 1),
            Span("scoring", 4.0, 4.125, 1),
        ),
    }  # fmt: skip
    return replace(make_trajectory(task, outcome=float(right)), **{**defaults, **fields})


def training_records(step, tasks=("t0", "t1"), group=4):
    """The attempts of a step, of which half are right; those of the first task train."""
    found = []
    for task in tasks:
        for number in range(group):
            one = replace(attempt(task, number, right=number % 2 == 0), policy_version=step - 1)
            update = UpdateView([0.5] * 12, one.action_mask, [-0.5] * 12, [0.75] * 12)
            is_trained = task == tasks[0]
            place = EpisodePlace(step, number, NOW + step)
            found.append(
                episode_record(
                    one, place, is_trained=is_trained, update=update if is_trained else None
                )
            )
    return found


def step_record(step, **figures):
    """A step's figures and times."""
    row = {"step": step, "reward": step / 10, "pass_rate": 0.5, "entropy": None, **figures}
    timings = {"step_s": 4.0, "rollout_s": 2.0, "update_s": 1.5}
    return StreamRecord(step, {"time": NOW + 10 * step, "figures": row, "timings": timings})


def notice_record(step, level="note", text="a line", **further):
    return StreamRecord(step, {"time": NOW + step, "level": level, "text": text, **further})


def write_stream(folder, name, records, *, is_finished=True):
    writer = StreamWriter(folder, name)
    writer.keep_until(1 << 40)
    writer.append(records)
    if is_finished:
        writer.finish_segment()
    return writer


def write_run(folder, *, steps=3, running=False):
    """Write a run with so many steps of eight attempts; returns its streams' folder."""
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text(json.dumps(PROFILE))
    tasks = folder / "accepted" / "tasks"
    tasks.mkdir(parents=True)
    for split, names in (("train", ("t0", "t1")), ("heldout", ("h0", "h1", "h2"))):
        write_tasks(
            tasks / f"{split}.jsonl",
            [make_task(name, gold=("france",), split=split, evidence=["lyon"]) for name in names],
        )
    trained = folder / "trained_policy"
    streams = (work_dir(trained) if running else trained) / STREAMS_FOLDER
    records = [one for step in range(1, steps + 1) for one in training_records(step)]
    write_stream(streams, EPISODES, records, is_finished=not running)
    write_stream(streams, "steps", [step_record(step) for step in range(1, steps + 1)])
    write_stream(streams, "notices", [notice_record(1, "warning", "warning: look", key="a.b")])
    for number, policy in enumerate(("warm_start", "trained")):
        records = [
            episode_record(attempt(task, 0, right=place <= number), EpisodePlace(0, 0, NOW))
            for place, task in enumerate(("h0", "h1", "h2"))
        ]
        write_stream(folder / "evaluation" / STREAMS_FOLDER / policy, EPISODES, records)
    return streams


class Viewer:
    """The application over folders of runs, asked without a socket."""

    def __init__(self, roots, folder, token=None):
        self.catalog = RunCatalog(roots, folder / "cache")
        self.labels = LabelFile(folder / "labels.jsonl", clock=lambda: NOW)
        self.app = ViewerApp(self.catalog, self.labels, ServingConfig(), token)
        self._app = self.app.app()

    def ask(self, path, method="GET", **given):
        async def ask():
            transport = httpx2.ASGITransport(app=self._app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, **given)

        return asyncio.run(ask())

    def settle(self, path):
        """Wait until the index of a path's run has all that its streams have."""
        name = path.removeprefix("/api/").removeprefix("runs/").split("/")[0].split("?")[0]
        run = next((one for one in self.catalog.all() if one.id == name), None)
        for _ in range(600 if run else 0):
            run.index.follow(60.0)
            if run.index.state().worded == 1.0 or not run.index.is_searched:
                return
            time.sleep(0.05)

    def get(self, path, **params):
        """The JSON of an answer that has to be one, once everything is indexed."""
        self.settle(path)
        answer = self.ask(f"/api/{path}", params=params or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path, method="GET", **given):
        """Status and code of an answer that has to be a refusal."""
        answer = self.ask(path, method, **given)
        return answer.status_code, answer.json()["error"]["code"]


def spoiled(content, seed):
    """The bytes with one of them changed, some cut off, or some put in."""
    dice = random.Random(seed)
    content, place = bytearray(content), dice.randrange(len(content))
    match dice.randrange(3):
        case 0:
            content[place] = dice.randrange(256)
        case 1:
            del content[place:]
        case _:
            content[place:place] = bytes(dice.randrange(256) for _ in range(9))
    return bytes(content)
