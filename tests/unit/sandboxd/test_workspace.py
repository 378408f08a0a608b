"""Snapshots and resets of a folder, traps included."""

import asyncio
import os
from pathlib import Path

import pytest

from sandboxd.wire import RequestError
from sandboxd.workspace import MAX_SNAPSHOT_BYTES, Workspace


@pytest.fixture
def root(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"x")
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def workspace(root, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    return Workspace(root, [other])


def _tree(root):
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(folder, name)
            is_link = os.path.islink(path)
            content = b"" if is_link or name in folders else Path(path).read_bytes()
            found[os.path.relpath(path, root)] = (os.lstat(path).st_mode, content)
    return found


def test_files_modes_links_and_folders_come_back(root, workspace):
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "run").write_bytes(b"#!/bin/sh")
    (root / "a" / "b" / "run").chmod(0o750)
    (root / "link").symlink_to("/nowhere")
    (root / "hard").hardlink_to(root / "a" / "b" / "run")
    before = _tree(root)
    kept = workspace.snapshot()
    (root / "a" / "b" / "run").write_bytes(b"changed")
    (root / "new").mkdir()
    (root / "link").unlink()
    asyncio.run(workspace.reset(kept))
    assert _tree(root) == before
    assert os.readlink(root / "link") == "/nowhere"


def test_a_reset_follows_no_link_out(root, workspace, tmp_path):
    (root / "way").symlink_to(tmp_path / "outside")
    asyncio.run(workspace.reset(None))
    assert _tree(root) == {}
    assert (tmp_path / "outside" / "kept").read_bytes() == b"x"


def test_other_folders_are_emptied_as_well(workspace, tmp_path):
    (tmp_path / "other" / "left").mkdir()
    (tmp_path / "other" / "left" / "file").write_bytes(b"x")
    asyncio.run(workspace.reset(None))
    assert list((tmp_path / "other").iterdir()) == []


def test_trees_deeper_than_python_recurses_are_emptied(root, workspace):
    here = os.open(root, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    asyncio.run(workspace.reset(None))
    assert _tree(root) == {}


def test_special_files_are_no_part_of_a_snapshot(root, workspace):
    os.mkfifo(root / "pipe")
    (root / "file").write_bytes(b"x")
    asyncio.run(workspace.reset(workspace.snapshot()))
    assert sorted(_tree(root)) == ["file"]


def test_too_large_a_snapshot_is_refused_before_it_is_read(root, workspace):
    with (root / "sparse").open("wb") as file:
        file.truncate(MAX_SNAPSHOT_BYTES * 1000)
    with pytest.raises(RequestError) as refusal:
        workspace.snapshot()
    assert refusal.value.status == 413


def test_an_unknown_snapshot_is_refused_and_nothing_is_emptied(root, workspace):
    (root / "file").write_bytes(b"x")
    with pytest.raises(RequestError) as refusal:
        asyncio.run(workspace.reset("nothing"))
    assert refusal.value.status == 404
    assert sorted(_tree(root)) == ["file"]


def test_snapshots_are_limited_in_number_and_forgotten_in_order(root, workspace):
    names = []
    for number in range(8):
        (root / "file").write_bytes(b"%d" % number)
        names.append(workspace.snapshot())
    with pytest.raises(RequestError, match="8 snapshots"):
        workspace.snapshot()
    asyncio.run(workspace.reset(names[2]))
    assert (root / "file").read_bytes() == b"2"
    workspace.snapshot()
    with pytest.raises(RequestError):
        asyncio.run(workspace.reset(names[3]))


async def _put_while(workspace, request):
    """A put whose last bytes come after another request."""

    async def content():
        yield b"one"
        await request()
        yield b"two"

    await workspace.put("folder/late", content())


@pytest.mark.parametrize("to", [None, "kept"])
def test_a_file_on_its_way_does_not_survive_a_reset(root, workspace, to):
    (root / "first").write_bytes(b"x")
    to = to and workspace.snapshot()
    before = _tree(root) if to else {}
    with pytest.raises(RequestError, match=r"'folder/late': .*reset") as error:
        asyncio.run(_put_while(workspace, lambda: workspace.reset(to)))
    assert error.value.status == 409
    assert _tree(root) == before


def test_a_snapshot_holds_no_file_that_is_not_whole(root, workspace):
    kept = []

    async def snapshot():
        kept.append(await asyncio.to_thread(workspace.snapshot))

    asyncio.run(_put_while(workspace, snapshot))
    assert list(_tree(root)) == ["folder", "folder/late"]
    asyncio.run(workspace.reset(kept[0]))
    assert list(_tree(root)) == ["folder"]


def test_no_file_is_put_while_a_reset_works(root, workspace):
    async def reset_and_put():
        resetting = asyncio.create_task(workspace.reset(None))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="reset"):
            await workspace.put("early", _chunks())
        await resetting
        assert await workspace.put("after", _chunks()) == 1

    async def _chunks():
        yield b"x"

    asyncio.run(reset_and_put())
    assert list(_tree(root)) == ["after"]


def test_a_file_that_vanishes_does_not_end_a_reset(root, workspace, monkeypatch):
    """As the start of a file whose put was refused does."""
    (root / "one").write_bytes(b"x")
    (root / "two").write_bytes(b"x")
    unlink = os.unlink

    def unlink_twice(path, **options):
        unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr("sandboxd.workspace.os.unlink", unlink_twice)
    asyncio.run(workspace.reset(None))
    assert _tree(root) == {}
