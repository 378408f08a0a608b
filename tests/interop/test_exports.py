"""Exported trajectories are read by the packages whose formats they have."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from espalier.records.episodes import read_episodes
from espalier.records.trajectory import read_trajectories, write_trajectories
from espalier_interop.exports import export
from tests.factories.attempts import made_attempt
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.sample_run import make_run
from tests.factories.viewed_run import write_run
from tests.interop.venvs import python_of

READERS = Path(__file__).parent / "exports"
COUNT = 200
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}[{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}]{% endgeneration %}{% else %}({{ m.role }} {{ m.content }}){% endif %}"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The evaluation of a run, and recorded attempts of several turns and windows."""
    folder = tmp_path_factory.mktemp("sources")
    run = make_run(folder / "run", last_stage="evaluate")
    recorded = folder / "recorded"
    recorded.mkdir()
    attempts = [made_attempt(seed, f"t{seed}") for seed in range(COUNT)]
    write_trajectories(recorded / "trajectories-00000000.parquet", attempts)
    return run / "evaluation", recorded


def read(reader, package, *arguments):
    command = [python_of(package), READERS / reader, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def test_verifiers_reads_each_window_as_a_training_sample(sources, tmp_path):
    for source in sources:
        attempts = read_trajectories(next(source.glob("traj*.parquet")))
        export(source, tmp_path / "traces.jsonl", "verifiers")
        traces = read("read_verifiers.py", "verifiers", tmp_path)
        assert len(traces) == len(attempts)
        for trace, attempt in zip(traces, attempts, strict=True):
            assert [branch["ids"] for branch in trace["branches"]] == [
                [*attempt.token_ids[window]] for window in attempt.windows
            ]
            assert [one for branch in trace["branches"] for one in branch["mask"]] == [
                *attempt.action_mask
            ]
            logprobs = [one for branch in trace["branches"] for one in branch["logprobs"]]
            assert logprobs == pytest.approx(attempt.behavior_logprobs, rel=1e-6)
            assert trace["reward"] == pytest.approx(attempt.total_reward)
            assert (trace["task"], trace["group"]) == (attempt.task_id, attempt.group_id)
            assert trace["ok"] is not attempt.is_lost


def test_harbor_reads_documents_and_writes_them_again(sources, tmp_path):
    for source in sources:
        attempts = read_trajectories(next(source.glob("traj*.parquet")))
        out = tmp_path / "atif.jsonl"
        export(source, out, "atif")
        written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        found = read("read_atif.py", "harbor", out)
        assert len(found) == len(attempts)
        for document, said, attempt in zip(written, found, attempts, strict=True):
            assert without_none(said["again"]) == without_none(document)
            assert said["sampled"] == [
                token
                for token, mask in zip(attempt.token_ids, attempt.action_mask, strict=True)
                if mask
            ]


def test_inspect_reads_every_attempt_of_a_log(tmp_path):
    run = tmp_path / "demo"
    write_run(run)
    (run / "profile.json").write_text('{"name": "laptop", "seed": 7}')
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    made = [made_attempt(seed, f"t{seed}") for seed in range(COUNT)]
    write_trajectories(recorded / "trajectories-00000000.parquet", made)
    policy = run / "evaluation" / "streams" / "trained"
    heldout = [episode.trajectory for episode in read_episodes(policy)]
    logs = tmp_path / "logs"
    logs.mkdir()
    for source, name, attempts in ((policy, "a", heldout), (recorded, "b", made)):
        export(source, logs / f"{name}.eval", "inspect")
        (found,) = read("read_inspect.py", "inspect", logs / f"{name}.eval")
        assert found["listed"]
        assert found["summaries"] == len(attempts)
        for sample, attempt in zip(found["samples"], attempts, strict=True):
            assert sample["id"] == attempt.task_id
            assert sample["right"] == (None if attempt.is_lost else "CI"[not attempt.is_right])
            assert sample["reward"] == (None if attempt.is_lost else attempt.total_reward)
            assert len(sample["roles"]) == len(attempt.messages)
            assert sample["calls"] == [
                [call.name, call.arguments] for one in attempt.messages for call in one.tool_calls
            ]
            assert sample["texts"] == [one.content for one in attempt.messages]
            assert sample["finish"] == attempt.finish_reason.value
            assert sample["tokens"] == sum(attempt.action_mask)
            assert (sample["error"] is not None) is attempt.is_lost
    assert found["accuracy"] == pytest.approx(sum(one.is_right for one in made) / COUNT)


def without_none(value):
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, list) else value


def test_trl_trains_on_what_was_sampled_and_nothing_else(sources, tmp_path):
    _, recorded = sources
    attempts = read_trajectories(recorded)
    export(recorded, tmp_path / "tokens.jsonl", "trl-tokens")
    export(recorded, tmp_path / "talks.jsonl", "trl")
    tokenizer = byte_tokenizer(TEMPLATE, ("<end>",))
    tokenizer.eos_token = tokenizer.pad_token = "<end>"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    files = [tmp_path / name for name in ("tokens.jsonl", "talks.jsonl", "tokenizer", "work")]
    (found,) = read("read_trl.py", "trl", *files)
    assert found["labels"] == [
        [
            token if mask else -100
            for token, mask in zip(
                attempt.token_ids[window], attempt.action_mask[window], strict=True
            )
        ]
        for attempt in attempts
        for window in attempt.windows
        if 1 in attempt.action_mask[window]
    ]
    assert found["trained"] == [
        "".join(
            f"[{message.content}"
            + "".join(f"{call.name}{json.dumps(call.arguments)}" for call in message.tool_calls)
            + "]"
            for message in attempt.messages
            if message.role == "assistant"
        )
        for attempt in attempts
    ]
    assert math.isfinite(found["loss"])
