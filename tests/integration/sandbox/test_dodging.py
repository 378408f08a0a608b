"""Programs that try to lose their sandbox, to speak in its name, or to outlive their limits."""

import asyncio
import json
import time

import pytest

from tests.integration.sandbox.backends import is_on_gvisor
from tests.integration.sandbox.dodges import (
    DRAIN,
    FIRST_THREADS_END,
    HANDS_ON,
    LOCKS,
    MAPPINGS,
    NAMES_THE_CHANNEL,
    PAGE_TABLES,
    PASSED_SOCKETS,
    SHARED_PAGES,
    SOCKET_BUFFERS,
    SPLICED_PAGES,
    TELLS_BY_A_TERMINAL,
    WAITS_FOR_ITS_CHILD,
    WAKES_ITSELF,
    WAKES_WHILE_ANOTHER_WAITS,
)

pytestmark = pytest.mark.contract
_STOPPED_WITHIN_S = 5.0


@pytest.mark.parametrize("kind", ["exec", "run_python", "python"])
def test_who_drains_its_own_output_still_gets_an_end(run, sandbox, kind):
    ask = sandbox.exec(["python", "-c", DRAIN]) if kind == "exec" else getattr(sandbox, kind)(DRAIN)
    assert run(ask).killed_by is None
    assert run(sandbox.run_python("print(6 * 7)")).stdout == b"42\n"


@pytest.mark.parametrize(
    "reply",
    [
        b'{"exit_status": []}\n',
        b'{"exit_status": 0}\n',
        b"\0",
        b"x" * 4096,
        b"\0\0\0\1\0",  # what the interpreter says of a first call that went well
        b"\0\0\0\1\0" * 2,
        b"\0\0\0\2\0",
        b"\0\0\0\1\xff",
    ],
)
def test_a_reply_by_the_code_itself_is_no_success(run, sandbox, reply):
    code = f"{NAMES_THE_CHANNEL}say({reply!r})\nprint('mine')\nraise ValueError('a failure')"
    result = run(sandbox.python(code))
    assert not result.succeeded
    following = run(sandbox.python("print('next')"))
    assert (following.stdout, following.stderr, following.exit_status) == (b"next\n", b"", 0)


def test_a_child_that_replies_early_moves_no_output(run, sandbox):
    code = f"""{NAMES_THE_CHANNEL}
import time
if os.fork() == 0:
    say(struct.pack(">IB", 1, 0))
    time.sleep(0.2)
    print("later", flush=True)
    os._exit(0)
time.sleep(0.5)
raise ValueError("a failure")
"""
    assert not run(sandbox.python(code)).succeeded
    following = run(sandbox.python("print('next')"))
    assert (following.stdout, following.exit_status) == (b"next\n", 0)


def test_a_reply_left_for_the_next_call_is_not_taken(run, sandbox):
    code = f"""{NAMES_THE_CHANNEL}
import threading, time
def later():
    time.sleep(0.3)
    say(struct.pack(">IB", 2, 0))
threading.Thread(target=later, daemon=True).start()
"""
    run(sandbox.python(code))
    result = run(sandbox.python("import time; time.sleep(0.6); raise ValueError"))
    assert not result.succeeded


def test_a_session_stands_still_between_its_calls(run, sandbox):
    run(
        sandbox.python(
            "import os, threading, time\n"
            "count = [0]\n"
            "def spin():\n"
            "    while True: count[0] += 1; time.sleep(0.001)\n"
            "threading.Thread(target=spin, daemon=True).start()\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    while True:\n"
            "        open('/workspace/alive', 'w').write(str(time.time())); time.sleep(0.01)\n"
            "time.sleep(0.3)"
        )
    )
    before = run(sandbox.get("alive"))
    time.sleep(0.5)
    assert run(sandbox.get("alive")) == before
    before = int(run(sandbox.python("print(count[0])")).stdout)
    time.sleep(0.5)
    assert int(run(sandbox.python("print(count[0])")).stdout) - before < 100
    run(sandbox.python("time.sleep(0.1)"))
    assert run(sandbox.get("alive")) != before


@pytest.mark.parametrize("code", [WAKES_ITSELF, WAKES_WHILE_ANOTHER_WAITS, HANDS_ON])
def test_a_session_cannot_wake_itself(run, sandbox, code):
    run(sandbox.python(code))
    until = time.monotonic() + _STOPPED_WITHIN_S
    before, now = None, run(sandbox.get("awake"))
    while now != before:
        assert time.monotonic() < until
        time.sleep(0.5)
        before, now = now, run(sandbox.get("awake"))


def test_a_program_that_waits_for_its_child_stands_still(run, sandbox):
    run(sandbox.python(f"kept = 1\n{WAITS_FOR_ITS_CHILD}"))
    time.sleep(2.0)
    assert run(sandbox.python("kept")).stdout == b"1\n"


def test_a_session_keeps_still_and_its_names(run, sandbox):
    code = "x = 1\nimport subprocess, threading, time\nchild = subprocess.Popen(['sleep', '9'])\n"
    run(sandbox.python(f"{code}threading.Thread(target=time.sleep, args=(9,)).start()"))
    for _ in range(5):
        time.sleep(0.3)
        assert run(sandbox.python("x, child.poll()")).stdout == b"(1, None)\n"


def test_a_lifted_processor_limit_ends_the_call(run, sandbox):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (resource.getrlimit(resource.RLIMIT_CPU)[1],) * 2)
while True: pass
"""
    result = run(sandbox.python(code))  # 4 s of processor time, 15 s in all
    assert result.killed_by in {"cpu_time", "wall_time"}  # the latter where others have the cores
    assert result.cpu_s < 7, result


@pytest.mark.parametrize(
    "code",
    [PAGE_TABLES, SOCKET_BUFFERS, PASSED_SOCKETS, SHARED_PAGES, MAPPINGS, LOCKS],
    ids=["page tables", "sockets", "sockets on their way", "shared pages", "mappings", "locks"],
)
def test_memory_that_belongs_to_no_process_is_counted(run, sandbox, backend, code):
    if is_on_gvisor(backend):
        pytest.skip("gVisor holds them in its own memory, which the pod's limit counts")
    result = run(sandbox.exec(["python", "-c", code], timeout_s=10.0))
    assert b"all of it" not in result.stdout
    assert result.killed_by in {"memory", "files"} or result.exit_status, result


def test_processes_whose_first_thread_ended_are_ended(run, sandbox):
    run(sandbox.python("kept = 1"))
    assert run(sandbox.exec(["python", "-c", FIRST_THREADS_END.format(1, 1, 0)])).succeeded
    result = run(sandbox.python("print(kept)"))
    assert result.stdout == b"1\n", result  # and nothing else with them


def test_memory_of_processes_whose_first_thread_ended_counts(run, sandbox, backend):
    if is_on_gvisor(backend):
        pytest.skip("gVisor does not show it; the pod's limit counts it")
    code = FIRST_THREADS_END.format(24, 48, 9)
    result = run(sandbox.exec(["python", "-c", code], timeout_s=10.0))
    assert result.killed_by == "memory" or result.exit_status, result


def test_pages_cannot_be_given_to_a_pipe(run, sandbox):
    assert run(sandbox.exec(["python", "-c", SPLICED_PAGES])).stdout == b"-1 38\n"


def test_terminals_are_limited_in_number(run, sandbox):
    code = """
import os, time
held = []
try:
    while len(held) < 200: held.append(os.openpty())
except OSError: pass
if held: time.sleep(5)
print("all of them" if len(held) > 100 else "few")
"""
    result = run(sandbox.exec(["python", "-c", code]))
    assert result.killed_by == "terminals" or result.stdout == b"few\n", result


@pytest.mark.parametrize("name", ["oom_score_adj", "timerslack_ns", "coredump_filter"])
def test_nothing_is_written_below_proc(run, sandbox, backend, name):
    if is_on_gvisor(backend):
        pytest.skip("gVisor has no Landlock; its /proc is its own")
    code = f"""
import os
try: os.write(os.open("/proc/self/{name}", os.O_WRONLY), b"0"); print("written")
except OSError as error: print(error.errno)
"""
    assert run(sandbox.exec(["python", "-c", code])).stdout in {b"13\n", b"2\n", b"1\n"}


def test_output_by_its_path_still_works(run, sandbox):
    result = run(
        sandbox.exec(["sh", "-c", "echo a > /dev/stdout; echo b > /dev/stderr; : > /dev/null"])
    )
    assert (result.stdout, result.stderr, result.exit_status) == (b"a\n", b"b\n", 0)


_ANOTHER_RUN = """
import json, os, resource, signal, socket
me, found = os.getpid(), []
mine = {me, os.getppid()}
everyone = {int(p) for p in os.listdir("/proc") if p.isdigit()}
everyone |= {int(thread) for thread in os.listdir("/proc/1/task")}
for pid in sorted(everyone - mine):
    for what, work in {
        "limits": lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
        "processors": lambda: os.sched_setaffinity(pid, {0}) is None,
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) is None,
        "output": lambda: os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), b"forged"),
        "memory": lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR),
        "environment": lambda: open(f"/proc/{pid}/environ").read(1),
        "signal": lambda: os.kill(pid, signal.SIGCONT) is None,
    }.items():
        try:
            if work(): found.append((pid, what))
        except OSError: pass
print(json.dumps(found))
"""


def test_runs_of_one_sandbox_do_not_reach_each_other(run, sandbox, backend):
    if is_on_gvisor(backend):
        pytest.skip("gVisor has no Landlock: there, runs that must not meet get their own sandbox")

    async def beside():
        graded = asyncio.create_task(sandbox.exec(["python", "-c", "import time; time.sleep(2)"]))
        await asyncio.sleep(0.7)
        attack = await sandbox.exec(["python", "-c", _ANOTHER_RUN])
        return await graded, attack

    graded, attack = run(beside())
    assert json.loads(attack.stdout) == []
    assert (graded.stdout, graded.exit_status) == (b"", 0)


def test_leases_and_folders_do_not_keep_the_server_waiting(run, sandbox):
    leased = """
import fcntl, os, time
f = os.open("/workspace/leased", os.O_CREAT | os.O_RDWR)
try: fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK); print("leased")
except OSError as error: print(error.errno)
"""
    assert run(sandbox.exec(["python", "-c", leased])).stdout in {b"1\n", b"22\n"}


def test_the_server_answers_while_folders_are_removed(run, sandbox):
    made = "import os\nfor n in range(20000): os.mkdir(f'/workspace/{n}')"
    run(sandbox.exec(["python", "-c", made]))

    async def meanwhile():
        removing = asyncio.create_task(sandbox.reset())
        await asyncio.sleep(0.02)
        slowest_s = 0.0
        while not removing.done():
            asked_s = time.monotonic()
            await sandbox.wait_until_ready(10.0)
            slowest_s = max(slowest_s, time.monotonic() - asked_s)
        await removing
        return slowest_s

    assert run(meanwhile()) < 2.0  # all of it in the server's loop took as long as the reset


def test_no_terminal_and_no_lock_tells_other_sandboxes(run, backend, sandbox, own_sandbox):
    look = "import os; s = os.stat('/dev/tty'); print(s.st_mtime_ns, s.st_atime_ns)"
    before = run(own_sandbox.run_python(look)).stdout
    run(sandbox.run_python(TELLS_BY_A_TERMINAL))
    assert run(own_sandbox.run_python(look)).stdout == before
    code = """
import fcntl, struct
with open("/workspace/locked", "w") as file:
    try: fcntl.fcntl(file, 37, struct.pack("hhqqi4x", 1, 0, 12345, 678, 0)); print("locked")
    except OSError: print("no")
"""
    assert run(sandbox.run_python(code)).stdout == b"no\n"
