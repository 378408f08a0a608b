"""The part that runs in a sandbox, against a real process."""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from espalier.wire.mcp import initialize_params, request
from espalier_interop.mcp.inside import MAX_LINE_BYTES, Server
from tests.fakes import mcp_notes

ARGV = [sys.executable, "-S", mcp_notes.__file__]


@contextmanager
def started(folder, argv=ARGV):
    before = Path.cwd()
    os.chdir(folder)
    server = Server("notes", list(argv), {})
    try:
        yield server
    finally:
        os.chdir(before)
        process = server.process
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def asked(server, number, how, within_s=10.0):
    called = request(number, "tools/call", {"name": "misbehave", "arguments": {"how": how}})
    return server.ask(called, number, within_s)


def test_a_request_is_answered_by_the_line_with_its_number(tmp_path):
    with started(tmp_path) as server:
        begun = server.ask(request(1, "initialize", initialize_params()), 1, 10.0)
        assert json.loads(begun["answer"])["result"]["serverInfo"]["name"] == "notes"
        said = asked(server, 2, "chatter")
        assert json.loads(said["answer"])["result"]["content"][0]["text"] == "all is well"


@pytest.mark.parametrize(("how", "within_s"), [("late", 0.2), ("long", 10.0)])
def test_a_late_or_long_answer_is_not_the_next_one(tmp_path, how, within_s):
    with started(tmp_path) as server:
        assert asked(server, 1, how, within_s) == {how: True}
        assert json.loads(asked(server, 2, "")["answer"])["id"] == 2


def test_a_server_that_ends_says_why(tmp_path):
    with started(tmp_path) as server:
        assert asked(server, 1, "exit") == {"ended": 3, "said": "out of notes\n"}
        assert asked(server, 2, "")["ended"] == 3


@pytest.mark.parametrize("program", ["pass", "import os, time; os.close(0); time.sleep(9)"])
def test_a_server_that_does_not_read_is_given_up(tmp_path, program):
    argv = [sys.executable, "-S", "-c", program]
    with started(tmp_path, argv) as server:
        big = request(1, "tools/call", {"text": "x" * 500_000})
        found = server.ask(big, 1, 1.0)
        assert found.keys() in ({"late"}, {"ended", "said"})


def test_both_sides_may_write_at_once(tmp_path):
    program = (
        "import sys\n"
        'sys.stdout.write(\'{"jsonrpc": "2.0", "method": "log"}\\n\' * 40000)\n'
        "sys.stdout.flush()\n"
        "sys.stdin.readline()\n"
        'print(\'{"jsonrpc": "2.0", "id": 1, "result": {}}\', flush=True)\n'
        "sys.stdin.readline()\n"
    )
    with started(tmp_path, [sys.executable, "-S", "-c", program]) as server:
        found = server.ask(request(1, "x", {"text": "x" * (MAX_LINE_BYTES * 2)}), 1, 20.0)
        assert json.loads(found["answer"])["result"] == {}
