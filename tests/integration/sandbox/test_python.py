"""Python code: in the session, and by itself."""

import asyncio

import pytest

from espalier.sandbox import SandboxRefused

pytestmark = pytest.mark.contract


def test_the_session_keeps_its_names(run, sandbox):
    run(sandbox.python("import math\ndef area(r):\n    return math.pi * r ** 2\nx = 2"))
    assert run(sandbox.python("area(x)")).stdout == b"12.566370614359172\n"


def test_the_session_shows_a_last_expression_and_what_is_printed(run, sandbox):
    result = run(sandbox.python("print('said')\nNone\n[1, 2]"))
    assert result.stdout == b"said\n[1, 2]\n"
    assert run(sandbox.python("x = 1")).stdout == b""


def test_an_error_in_the_session_is_told_and_the_names_stay(run, sandbox):
    run(sandbox.python("x = 41"))
    result = run(sandbox.python("x += 1\nraise ValueError('so')"))
    assert result.exit_status == 1
    assert result.stderr.startswith(b"Traceback")
    assert result.stderr.endswith(b"ValueError: so\n")
    assert b"sandboxd" not in result.stderr
    assert run(sandbox.python("x")).stdout == b"42\n"


@pytest.mark.parametrize("code", ["def f(:", "x = (", "a\0b", "(" * 5000, "return 1"])
def test_code_that_is_no_python_is_an_error_like_any_other(run, sandbox, code):
    result = run(sandbox.python(code))
    assert result.exit_status == 1
    assert b"Error" in result.stderr
    assert run(sandbox.python("1")).succeeded


def test_a_session_that_exits_or_crashes_starts_anew(run, sandbox):
    run(sandbox.python("x = 1"))
    assert run(sandbox.python("import sys; sys.exit(5)")).exit_status == 5
    assert run(sandbox.python("x")).exit_status == 1
    crashed = run(sandbox.python("import os; os.abort()"))
    assert (crashed.exit_status, crashed.signal) == (None, 6)
    assert run(sandbox.python("2")).stdout == b"2\n"


def test_a_session_that_takes_too_long_is_killed_and_starts_anew(run, sandbox):
    result = run(sandbox.python("print('a')\nwhile True: pass", timeout_s=0.5))
    assert (result.stdout, result.timed_out) == (b"a\n", True)
    assert run(sandbox.python("3")).stdout == b"3\n"


def test_each_call_of_a_session_has_its_own_time(run, sandbox):
    for _ in range(3):
        assert run(sandbox.python("import time; time.sleep(0.8)", timeout_s=2.0)).succeeded


def test_the_session_takes_one_call_at_a_time(run, sandbox):
    async def two():
        code = "import time\nopen('started', 'w').close()\ntime.sleep(3)"
        first = asyncio.create_task(sandbox.python(code))
        while (await sandbox.exec(["test", "-e", "started"])).exit_status:
            await asyncio.sleep(0.05)
        with pytest.raises(SandboxRefused, match="busy"):
            await sandbox.python("1")
        return await first

    assert run(two()).succeeded


def test_the_session_sees_the_files_and_its_output_is_capped(run, sandbox):
    run(sandbox.put("data.txt", b"7"))
    assert run(sandbox.python("int(open('data.txt').read())")).stdout == b"7\n"
    result = run(sandbox.python("print('x' * 10**6)"))
    assert (result.truncated, len(result.stdout)) == (True, sandbox.limits.output_bytes)
    assert run(sandbox.python("5")).stdout == b"5\n"


def test_a_session_cannot_confuse_the_server_over_its_own_channel(run, sandbox):
    for lie in (b"{}\n", b"x" * 5000, b'{"exit_status": "no"}\n', b"[1]\n"):
        result = run(sandbox.python(f"import os, time; os.write(3, {lie!r}); time.sleep(0.2)"))
        assert result.exit_status in {0, 1, None}
        assert run(sandbox.exec(["echo", "fine"])).stdout == b"fine\n"
    run(sandbox.python("import os; os.close(3)"))
    assert run(sandbox.python("6")).stdout == b"6\n"


def test_a_script_is_python_as_usual(run, sandbox):
    run(sandbox.put("helping.py", b"word = 'imported'"))
    code = """
import atexit, helping, sys, threading
atexit.register(print, "at exit")
threading.Timer(0.1, print, ["from a thread"]).start()
print(helping.word, sys.stdin.read(), __name__, sys.argv)
"""
    result = run(sandbox.run_python(code, stdin=b"typed"))
    assert result.succeeded
    assert result.stdout.decode().split("\n") == [
        "imported typed __main__ ['']",
        "from a thread",
        "at exit",
        "",
    ]


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, b""),
        ("import sys; sys.exit('no')", 1, b"no\n"),
        ("exit()", 0, b""),
        ("1/0", 1, b"ZeroDivisionError: division by zero\n"),
        ("import os; os._exit(9)", 9, b""),
    ],
)
def test_a_script_ends_with_the_status_that_python_has(run, sandbox, code, status, said):
    result = run(sandbox.run_python(code))
    assert result.exit_status == status
    assert result.stderr.endswith(said)


def test_scripts_share_nothing(run, sandbox):
    run(sandbox.run_python("import builtins, sys, json\nbuiltins.x = json.x = sys.x = 1"))
    code = "import builtins, sys, json\nprint(*(hasattr(m, 'x') for m in (builtins, sys, json)))"
    assert run(sandbox.run_python(code)).stdout == b"False False False\n"
    assert run(sandbox.python("import sys; hasattr(sys, 'x')")).stdout == b"False\n"


def test_scripts_draw_different_random_numbers(run, sandbox):
    code = """
import random, uuid
try:
    from numpy.random import rand
except ImportError:
    rand = random.random
print(random.random(), uuid.uuid4(), rand())
"""
    drawn = [run(sandbox.run_python(code)).stdout.split() for _ in range(2)]
    assert not set(drawn[0]) & set(drawn[1])


def test_a_script_can_start_processes_of_its_own(run, sandbox):
    code = """
import multiprocessing, subprocess
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
print(subprocess.run(["echo", "sub"], capture_output=True, text=True).stdout)
"""
    result = run(sandbox.run_python(code))
    assert result.stdout == b"[1, 2]\nsub\n\n", result
