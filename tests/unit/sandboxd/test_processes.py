"""Processes, from what /proc says of them."""

import pytest

from sandboxd import kernel

_LINUX = """Name:\tpython
State:\tS (sleeping)
PPid:\t1
VmRSS:\t   30000 kB
RssAnon:\t   20000 kB
RssFile:\t   10000 kB
RssShmem:\t     500 kB
VmData:\t   60000 kB
Threads:\t3
"""
_GVISOR = """Name:\tpython
State:\tS (sleeping)
PPid:\t1
VmSize:\t90000 kB
VmRSS:\t30000 kB
VmData:\t25000 kB
Threads:\t3
"""


@pytest.mark.parametrize(
    ("status", "held_kb"),
    [(_LINUX, 20_500), (_GVISOR, 25_000), (_GVISOR.replace("25000", "99000"), 30_000)],
)
def test_memory_counts_pages_that_no_file_backs(monkeypatch, tmp_path, status, held_kb):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(status, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    (found,) = kernel.all_processes().values()
    assert (found.pid, found.parent, found.threads) == (7, 1, 3)
    assert found.held_bytes == 1024 * held_kb


@pytest.mark.parametrize(
    "name", ["\nRssAnon:\t0", "x\nVmRSS:\t0 kB", "\nState:\tZ", "a:b\nThreads"]
)
def test_a_name_says_nothing_of_its_process(monkeypatch, tmp_path, name):
    (tmp_path / "7").mkdir()
    text = _GVISOR.replace("python", name)
    (tmp_path / "7" / "status").write_text(text, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    assert [process.held_bytes for process in kernel.all_processes().values()] == [1024 * 25_000]


def test_sizes_of_this_process_are_read():
    assert 0 < kernel.own_bytes("VmData") < kernel.own_bytes("VmSize")


def test_ended_processes_are_not_listed(monkeypatch, tmp_path):
    for pid, state in (("7", "Z (zombie)"), ("8", "X (dead)")):
        (tmp_path / pid).mkdir()
        text = _LINUX.replace("S (sleeping)", state)
        (tmp_path / pid / "status").write_text(text, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    assert kernel.all_processes() == {}
