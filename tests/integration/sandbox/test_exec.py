"""Programs: what they get, what comes back."""

import asyncio
import hashlib
import json
import time

import pytest

from espalier.sandbox import SandboxRefused

pytestmark = pytest.mark.contract


def test_a_program_gets_its_arguments_as_they_are(run, sandbox):
    words = ["a b", "", "*", "$HOME", "naïve", "日本", "-n", '"']
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    result = run(sandbox.exec(["python", "-c", code, *words]))
    assert result.succeeded
    assert json.loads(result.stdout) == words


def test_a_program_reads_its_input_to_the_end(run, sandbox):
    data = bytes(range(256)) * 4096
    result = run(sandbox.exec(["sha256sum"], stdin=data))
    assert result.stdout.split()[0] == _sha256(data)


def test_a_program_without_input_finds_it_ended(run, sandbox):
    assert run(sandbox.exec(["cat"])).stdout == b""


def test_a_program_has_only_the_environment_that_it_was_given(run, sandbox):
    result = run(sandbox.exec(["env"], env={"COLOR": "blue=green", "HOME": "/tmp"}))
    lines = set(result.stdout.decode().split("\n"))
    assert {"COLOR=blue=green", "HOME=/tmp"} <= lines
    names = {line.partition("=")[0] for line in lines if line}
    assert names <= {"COLOR", "HOME", "PATH", "LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_a_program_starts_in_the_empty_workspace(run, sandbox):
    result = run(sandbox.exec(["sh", "-c", "pwd; ls -A"]))
    assert result.stdout == b"/workspace\n"


def test_stdout_and_stderr_are_separate_bytes(run, sandbox):
    result = run(sandbox.exec(["sh", "-c", r"printf '\377\000a'; printf oops >&2; exit 3"]))
    assert (result.stdout, result.stderr, result.exit_status) == (b"\xff\x00a", b"oops", 3)
    assert not result.succeeded


def test_a_missing_program_exits_127_and_an_unrunnable_126(run, sandbox):
    assert run(sandbox.exec(["no-such-program"])).exit_status == 127
    run(sandbox.put("notes.txt", b"no program"))
    assert run(sandbox.exec(["./notes.txt"])).exit_status == 126


def test_the_signal_that_ended_a_program_is_reported(run, sandbox):
    result = run(sandbox.exec(["sh", "-c", "kill -SEGV $$"]))
    assert (result.exit_status, result.signal, result.killed_by) == (None, 11, None)


def test_a_timed_out_program_keeps_its_output(run, sandbox):
    started = time.monotonic()
    result = run(sandbox.exec(["sh", "-c", "echo early; sleep 30"], timeout_s=0.5))
    assert (result.stdout, result.signal, result.timed_out) == (b"early\n", 9, True)
    assert 0.5 <= result.duration_s < 3
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("behind", ["tee log", "cat; true", "(sleep 0.1; tail -1)"])
def test_a_pipe_hides_no_deadline(run, sandbox, behind):
    # rllm#710: of 178 episodes 76 hit the wall, and `| tee` made each an exit status of 0
    command = f"(echo early; sleep 30) | {behind}"
    result = run(sandbox.exec(["sh", "-c", command], timeout_s=0.5))
    assert (result.timed_out, result.killed_by, result.exit_status) == (True, "wall_time", None)
    assert not result.succeeded


def test_a_program_that_ignores_signals_is_killed_as_well(run, sandbox):
    stubborn = "trap '' TERM INT HUP; while :; do sleep 1; done"
    assert run(sandbox.exec(["sh", "-c", stubborn], timeout_s=0.5)).timed_out


def test_runs_at_the_same_time_keep_their_output_apart(run, sandbox):
    async def both():
        say = "for i in 1 2 3 4 5; do echo {0}; sleep 0.02; done"
        return await asyncio.gather(
            *(sandbox.exec(["sh", "-c", say.format(word)]) for word in ("left", "right", "up"))
        )

    assert [r.stdout.decode().split() for r in run(both())] == [
        ["left"] * 5,
        ["right"] * 5,
        ["up"] * 5,
    ]


@pytest.mark.parametrize("argv", [[], ["sh", "a\0b"], ["x" * 200_000], ["\ud800"]])
def test_arguments_that_no_program_can_get_are_refused(run, sandbox, argv):
    with pytest.raises(SandboxRefused):
        run(sandbox.exec(argv))


@pytest.mark.parametrize("name", ["", "A=B", "N\0"])
def test_variables_that_no_program_can_have_are_refused(run, sandbox, name):
    with pytest.raises(SandboxRefused):
        run(sandbox.exec(["true"], env={name: "x"}))


def _sha256(data):
    return hashlib.sha256(data).hexdigest().encode()
