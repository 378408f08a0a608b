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
        text = _LINUX.replace("S (sleeping)", state).replace("Threads:\t3", "Threads:\t1")
        (tmp_path / pid / "status").write_text(text, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    assert kernel.all_processes() == {}
    assert kernel.activity(7) == {0: kernel.Activity("Z")}


def test_a_process_goes_on_when_its_first_thread_ended(monkeypatch, tmp_path):
    for thread, text in (
        ("7", _GVISOR.replace("S (sleeping)", "Z (zombie)")),
        ("7/task/7", _GVISOR.replace("S (sleeping)", "Z (zombie)")),
        ("7/task/9", _LINUX),
    ):
        (tmp_path / thread).mkdir(parents=True, exist_ok=True)
        (tmp_path / thread / "status").write_text(text, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    (found,) = kernel.all_processes().values()
    assert (found.pid, found.shown_by, found.held_bytes) == (7, 9, 1024 * 20_500)
    assert kernel.activity(7) == {0: kernel.Activity("S"), 9: kernel.Activity("S")}


def test_a_process_whose_threads_are_not_listed_is_live(monkeypatch, tmp_path):
    (tmp_path / "7").mkdir()
    text = _GVISOR.replace("S (sleeping)", "Z (zombie)")
    (tmp_path / "7" / "status").write_text(text, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    assert list(kernel.all_processes()) == [7]
    assert kernel.activity(7) == {0: kernel.Activity("?"), 7: kernel.Activity("?")}
    assert kernel.activity(8) == {0: kernel.Activity("?")}


@pytest.mark.parametrize(
    ("states", "of_process"), [("DTS", "D"), ("TST", "S"), ("TTT", "T"), ("TTD", "D")]
)
def test_threads_and_their_process_are_told_apart(monkeypatch, tmp_path, states, of_process):
    for thread, state in zip(("7", "8", "9", "10"), f"{states}Z", strict=True):
        text = _LINUX.replace("S (sleeping)", f"{state} (so)")
        text += f"voluntary_ctxt_switches:\t{thread}\nnonvoluntary_ctxt_switches:\t1\n"
        for folder in ("7", "7/task/7") if thread == "7" else (f"7/task/{thread}",):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "status").write_text(text, encoding="ascii")
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) S 1{' 0' * 9} 8 4 0 0\n", encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    assert kernel.activity(7) == {
        0: kernel.Activity(of_process, 12),
        7: kernel.Activity(states[0], 8),
        8: kernel.Activity(states[1], 9),
        9: kernel.Activity(states[2], 10),
    }


def test_a_list_of_mappings_without_end_is_not_read(monkeypatch, tmp_path):
    (tmp_path / "7").mkdir()
    line = "7f0000000000-7f0000001000 r--p 00000000 00:01 5 /" + "x" * 300_000 + "\n"
    (tmp_path / "7" / "maps").write_text(line * 40, encoding="ascii")
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    process = kernel.Process(7, 1, 1, 0, 0, address_bytes=10**9, shown_by=7)
    assert kernel.unseen_bytes([process], 10**12) == (0, 10**9)
