"""Files of the workspace, in and out, and nothing else's."""

import asyncio
import os

import pytest

from espalier.sandbox import SandboxRefused

pytestmark = pytest.mark.contract


def test_fifty_megabytes_come_back_as_they_went(run, sandbox):
    content = os.urandom(50 * 2**20)
    run(sandbox.put("deep/er/big.bin", content))
    assert run(sandbox.exec(["stat", "-c", "%s", "deep/er/big.bin"])).stdout == b"52428800\n"
    assert run(sandbox.get("deep/er/big.bin")) == content


@pytest.mark.parametrize("name", ["ünï.txt", "a b", "日本/x", "%2e%2e", "a&b=c?d#e", "-rf", "\n"])
def test_names_are_taken_as_they_are(run, sandbox, name):
    run(sandbox.put(name, b"here"))
    assert run(sandbox.get(name)) == b"here"
    assert run(sandbox.exec(["cat", f"./{name}"])).stdout == b"here"


def test_an_empty_file_and_one_written_twice(run, sandbox):
    run(sandbox.put("x", b""))
    assert run(sandbox.get("x")) == b""
    run(sandbox.put("x", b"second"))
    assert run(sandbox.get("x")) == b"second"
    assert run(sandbox.exec(["ls", "-A"])).stdout == b"x\n"


def test_programs_can_change_what_was_put(run, sandbox):
    run(sandbox.put("log", b"a\n"))
    assert run(sandbox.exec(["sh", "-c", "echo b >> log"])).succeeded
    assert run(sandbox.get("log")) == b"a\nb\n"


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/", "/etc/passwd", "../etc/passwd", "a/../../etc/passwd", "a/..", "x\0y"],
)
def test_paths_that_lead_out_are_refused(run, sandbox, path):
    with pytest.raises(SandboxRefused):
        run(sandbox.get(path))
    with pytest.raises(SandboxRefused):
        run(sandbox.put(path, b"x"))


@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/1/environ", "../etc/passwd", "plain"])
def test_links_are_not_followed(run, sandbox, target):
    run(sandbox.put("plain", b"inside"))
    run(sandbox.exec(["ln", "-s", target, "link"]))
    with pytest.raises(SandboxRefused):
        run(sandbox.get("link"))
    run(sandbox.put("link", b"over it"))  # takes the link's place, as rename does
    assert run(sandbox.get("link")) == b"over it"
    assert run(sandbox.get("plain")) == b"inside"


@pytest.mark.parametrize("target", ["/tmp", "/proc/self", "/", "."])
def test_folders_that_are_links_are_not_followed(run, sandbox, target):
    run(sandbox.exec(["sh", "-c", f"ln -s {target} way; echo secret > /tmp/there"]))
    with pytest.raises(SandboxRefused):
        run(sandbox.get("way/there"))
    with pytest.raises(SandboxRefused):
        run(sandbox.put("way/new", b"x"))
    assert run(sandbox.exec(["ls", "/tmp"])).stdout == b"there\n"


def test_a_folder_swapped_for_a_link_all_the_time_never_leads_out(run, sandbox):
    swap = """
mkdir real; echo inside > real/passwd
while :; do ln -sfn /etc way; rm -f way; mkdir way 2>/dev/null; echo inside > way/passwd; rm -r way
done 2>/dev/null
"""

    async def race():
        swapping = asyncio.create_task(sandbox.exec(["sh", "-c", swap], timeout_s=2.0))
        got = []
        while not swapping.done():
            try:
                got.append(await sandbox.get("way/passwd"))
            except SandboxRefused:
                await asyncio.sleep(0)
        await swapping
        return got

    assert set(run(race())) <= {b"inside\n", b""}


@pytest.mark.parametrize("make", ["mkfifo it", "mkdir it", "ln -s /dev/zero it"])
def test_what_is_no_plain_file_is_refused_at_once(run, sandbox, make):
    assert run(sandbox.exec(["sh", "-c", make])).succeeded
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.get("it"))
    assert refusal.value.status == 409


def test_a_file_that_is_not_there_is_refused_as_missing(run, sandbox):
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.get("nowhere/to/be/found"))
    assert refusal.value.status == 404


def test_a_file_that_is_too_long_is_refused_in_both_directions(run, sandbox):
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.put("big", bytes(65 * 2**20)))
    assert refusal.value.status == 413
    run(sandbox.exec(["truncate", "-s", "70000000", "sparse"]))
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.get("sparse"))
    assert refusal.value.status == 413
