"""What a job is given of memory, by which of the kernel's limits, as the job itself reads them."""

import json
import subprocess
import sys

import pytest

from sandboxd import kernel, runner

GIB = 2**30
ORDERS = """
import json, os, resource, sys
from sandboxd import kernel, runner
from sandboxd.kernel import own_bytes

is_program, keeps_data = json.loads(sys.argv[1])
if not keeps_data:  # a kernel that takes RLIMIT_DATA and does not keep it
    kernel.can_map = lambda size: True
held = {field: own_bytes(field) for field in ("VmData", "VmSize")}
names = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
code = (
    "import json, resource\\n"
    f"print(json.dumps({{n: resource.getrlimit(getattr(resource, n)) for n in {names!r}}}))"
)
orders = {
    "workspace": os.getcwd(),
    "argv": [sys.executable, "-I", "-c", code] if is_program else None,
    "code": None if is_program else code,
    "env": {},
    "session": False,
    "protect": [],
    "protect_threads": [],
    "counts_own_processes": False,
    "internet_sockets": False,
    "writable": [],
    "landlock": 0,
    "threads": 0,
    "limits": {"memory_bytes": 2**30, "disk_bytes": 2**20, "cpu_s": 2.5, "processes": 8},
}
"""
STARTS_A_JOB = """
print(json.dumps(held), flush=True)
job = runner.start_job(orders, {"stdin": 0, "stdout": 1, "stderr": 2})
"""


def limits_of_a_job(folder, *, is_program, keeps_data):
    """Bytes that the job's starter held, and the limits that the job reads of itself."""
    source = f"{ORDERS}{STARTS_A_JOB}os.waitpid(job, 0)"
    lines = started(folder, source, is_program=is_program, keeps_data=keeps_data).splitlines()
    held, limits = map(json.loads, lines)
    return held, {name: soft for name, (soft, _) in limits.items()}


def started(folder, source, *, is_program, keeps_data):
    """What a process that starts a job, and the job, print."""
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps([is_program, keeps_data])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def about(size):
    """Sizes of a process change by a few pages between two looks at them."""
    return pytest.approx(size, abs=2**22)


def test_a_programs_data_is_limited_and_its_addresses_loosely(tmp_path):
    _, limits = limits_of_a_job(tmp_path, is_program=True, keeps_data=True)
    assert limits == {
        "RLIMIT_AS": GIB + 32 * GIB,
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": 3,
        "RLIMIT_DATA": GIB,
        "RLIMIT_FSIZE": 2**20,
        "RLIMIT_NOFILE": 256,
    }


def test_python_code_has_its_memory_beyond_the_interpreters(tmp_path):
    held, limits = limits_of_a_job(tmp_path, is_program=False, keeps_data=True)
    assert limits["RLIMIT_DATA"] == about(GIB + held["VmData"])
    assert limits["RLIMIT_AS"] == GIB + 32 * GIB  # for page tables


@pytest.mark.parametrize("is_program", [True, False], ids=["program", "python"])
def test_addresses_are_limited_where_the_kernel_does_not_limit_data(tmp_path, is_program):
    held, limits = limits_of_a_job(tmp_path, is_program=is_program, keeps_data=False)
    besides = runner.FILES_BYTES if is_program else held["VmSize"]
    assert limits["RLIMIT_AS"] == about(GIB + besides)


SHOWN_LATE = """
import os, time
from pathlib import Path
from sandboxd import kernel

def show_late():
    time.sleep(0.3)
    Path("shown").touch()

kernel.show_memory = show_late
"""


def test_python_code_is_a_job_once_it_shows_its_memory(tmp_path):
    """Before, it counts with the whole address space of the interpreter that it is a fork of."""
    source = (
        f"{SHOWN_LATE}{ORDERS}{STARTS_A_JOB}print(Path('shown').exists(), os.waitpid(job, 0)[1])"
    )
    said = started(tmp_path, source, is_program=False, keeps_data=True)
    assert said.splitlines()[-1] == "True 0"


_DIES_LATE = """
import time
really, until = os.killpg, time.monotonic() + DIE_AFTER_S
os.killpg = lambda group, by: really(group, by) if time.monotonic() > until else None
report, said = os.pipe()
orders["argv"] = ["/bin/sh", "-c", "setsid sleep 9 >/dev/null 2>&1 &"]
streams = {"stdin": os.dup(0), "stdout": os.dup(1), "stderr": os.dup(2)}
runner.supervise(orders, {**streams, "report": said})
print(os.read(report, 4096).decode().strip())
"""


def test_a_run_whose_processes_die_late_ends_clean(tmp_path):
    """What dies needs a processor for it; all runs would be ended with one that is not clean."""
    source = f"{ORDERS}{_DIES_LATE.replace('DIE_AFTER_S', '0.5')}"
    said = started(tmp_path, source, is_program=True, keeps_data=True)
    assert json.loads(said.splitlines()[-1])["clean"], said


def test_a_machine_that_stands_still_leaves_a_run_clean(tmp_path):
    """Its time is over at once, and what was killed had none of it."""
    dies_late = _DIES_LATE.replace("DIE_AFTER_S", "0.1")
    source = f"{ORDERS}runner._DIE_WITHIN_S = 0.0\n{dies_late}"
    said = started(tmp_path, source, is_program=True, keeps_data=True)
    assert json.loads(said.splitlines()[-1])["clean"], said


@pytest.mark.parametrize(("size", "can"), [(2**20, True), (2**50, False), (2**70, False)])
def test_mappable_memory_is_found_by_mapping(size, can):
    assert kernel.can_map(size) is can
