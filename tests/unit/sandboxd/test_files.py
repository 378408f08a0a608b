"""Putting and getting files, on a folder of this machine that holds traps."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd import workspace as files
from sandboxd.wire import MAX_FILE_BYTES, RequestError


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "outside").write_bytes(b"secret")
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "plain").write_bytes(b"inside")
    (root / "file-link").symlink_to(tmp_path / "outside")
    (root / "folder-link").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


async def _chunks(*parts):
    for part in parts:
        yield part


async def _read(workspace, path):
    return b"".join([data async for data in files.file_chunks(files.open_file(workspace, path))])


def _put(workspace, path, *parts):
    return asyncio.run(files.Workspace(workspace, []).put(path, _chunks(*parts)))


def _get(workspace, path):
    return asyncio.run(_read(workspace, path))


def test_a_file_is_read_back_unchanged(workspace):
    assert _put(workspace, "a/b/c", b"one", b"", b"two") == 6
    assert _get(workspace, "a//b/./c") == b"onetwo"


@pytest.mark.parametrize(
    "path",
    ["../outside", "file-link", "folder-link/outside", "loop", "plain/x", "pipe", "/etc/passwd"],
)
def test_nothing_outside_is_read(workspace, path):
    with pytest.raises(RequestError):
        _get(workspace, path)


@pytest.mark.parametrize("path", ["../new", "folder-link/new", "loop/new", "plain/new", "/new"])
def test_nothing_outside_is_written(workspace, path):
    with pytest.raises(RequestError):
        _put(workspace, path, b"x")
    assert sorted(p.name for p in workspace.parent.iterdir()) == ["outside", "workspace"]


def test_a_link_is_replaced_and_its_target_untouched(workspace):
    _put(workspace, "file-link", b"new")
    assert _get(workspace, "file-link") == b"new"
    assert (workspace.parent / "outside").read_bytes() == b"secret"


def test_a_file_that_could_not_be_written_whole_leaves_nothing(workspace):
    async def breaks():
        yield b"part"
        raise ConnectionError

    before = sorted(os.listdir(workspace))
    with pytest.raises(RequestError):
        asyncio.run(files.Workspace(workspace, []).put("x", breaks()))
    with pytest.raises(RequestError, match="at most"):
        _put(workspace, "x", *[bytes(2**20)] * (MAX_FILE_BYTES // 2**20), b"1")
    assert sorted(os.listdir(workspace)) == before


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "", "plain", "file-link", "folder-link", "loop", "a", "\0", "~"]
        )
        | st.text(max_size=4),
        max_size=6,
    ).map("/".join)
)
def test_whatever_the_path_it_stays_inside_or_is_refused(workspace, path):
    try:
        _put(workspace, path, b"mark")
    except (RequestError, UnicodeEncodeError):
        pass
    else:
        assert _get(workspace, path) == b"mark"
    assert sorted(p.name for p in workspace.parent.iterdir()) == ["outside", "workspace"]
    assert (workspace.parent / "outside").read_bytes() == b"secret"
