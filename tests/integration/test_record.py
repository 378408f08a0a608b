"""The command that records agents: attempts over HTTP become trajectories on disk."""

import json
import signal

import httpx2
import pytest

from espalier.policy.loading import save_policy
from espalier.records.trajectory import read_trajectories
from tests.factories.tiny import tiny_policy
from tests.integration.commands import espalier_here, started

QUESTION = {"role": "user", "content": "currency of France"}


@pytest.fixture
def policy_dir(tmp_path):
    save_policy(tiny_policy(), tmp_path / "policy")
    return tmp_path / "policy"


def recording(policy_dir, out, *options):
    return started("record", policy_dir, "--out", out, "--port", "0", *options)


def address_of(process):
    for line in process.stderr:
        if line.startswith("listening on "):
            return line.split()[2].rstrip(";")
    raise AssertionError(process.stdout.read())


def begun(client, task_id="t1"):
    answer = client.post("/attempts", json={"task_id": task_id})
    assert answer.status_code == 201, answer.text
    return answer.json()


def ask(client, attempt, **fields):
    body = {"model": "any", "messages": [QUESTION], "max_tokens": 8, **fields}
    return client.post(f"{attempt['openai_base_url']}/chat/completions", json=body)


def test_the_command_records_attempts_as_trajectories(policy_dir, tmp_path):
    process = recording(policy_dir, tmp_path / "out", "--attempts", "3", "--json")
    try:
        with httpx2.Client(base_url=address_of(process), timeout=60) as client:
            whole, unpaid, idle = (begun(client, f"t{n}") for n in range(3))
            answer = ask(client, whole, return_token_ids=True).json()
            ask(client, unpaid)
            client.post(whole["reward_url"], json={"terms": {"outcome": 1.0, "brevity": -0.25}})
            ended = [client.post(one["end_url"]).json() for one in (whole, unpaid)]
            assert ask(client, whole).status_code == 404
            ended.append(client.post(idle["end_url"]).json())  # the last: the process ends
        told = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert [one["lost"] for one in ended] == [None, "no_reward", "agent_failed"]
    figures = json.loads(told)
    assert figures["lost"] == {"agent_failed": 1, "no_reward": 1}
    (trajectory,) = read_trajectories(tmp_path / "out")
    choice = answer["choices"][0]
    assert list(trajectory.token_ids) == [*answer["prompt_token_ids"], *choice["token_ids"]]
    assert trajectory.reward == {"outcome": 1.0, "brevity": -0.25}
    assert trajectory.task_id == "t0"


def test_a_signal_ends_it_with_what_was_recorded(policy_dir, tmp_path):
    process = recording(policy_dir, tmp_path / "out")
    try:
        with httpx2.Client(base_url=address_of(process), timeout=60) as client:
            attempt = begun(client)
            ask(client, attempt)
            client.post(attempt["reward_url"], json={"reward": 0.0})
            client.post(attempt["end_url"])
            begun(client)  # and never ended
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0
    assert len(read_trajectories(tmp_path / "out")) == 1


def test_a_folder_that_is_there_is_refused(policy_dir, tmp_path):
    asked = ("record", str(policy_dir), "--out", str(tmp_path), "--port", "0")
    done = espalier_here(*asked, cwd=tmp_path)
    assert done.exit_code == 1
    assert "choose another --out" in done.stderr
