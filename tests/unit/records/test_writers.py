"""Writers of one artifact folder: one at a time, killed between any two system calls."""

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import get_context

import pytest

from espalier.records import ArtifactError, open_artifact, replace_directory, work_dir
from espalier.records import artifact as module
from espalier.records.artifact import only_writer
from espalier.storage import location as place_module
from espalier.storage import open_location
from tests.factories.storage import artifact, files


def killed_at(renames, exchanges, publish):
    """Publish in a process that is killed before the rename of that number; None: it ended first.

    Without `exchanges` the file system cannot let two folders change places.
    """
    done = 0

    def counted(call):
        def counting(*arguments, **named):
            nonlocal done
            done += 1
            if done == renames:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return counting

    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status)
    exchange = module._exchange if exchanges else lambda one, other: False
    module._exchange = counted(exchange)
    os.rename = counted(os.rename)
    module.shutil.rmtree = counted(module.shutil.rmtree)
    publish()
    os._exit(0)


def whole(folder):
    """What a reader finds: the manifest, or None."""
    return open_artifact(folder) if (folder / "manifest.json").exists() else None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # threads of other tests
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_writer_killed_anywhere_leaves_a_whole_artifact(tmp_path, exchanges):
    first = artifact(tmp_path / "first", {"rows": b"1", "gone": b"3"})
    second = artifact(tmp_path / "second", {"rows": b"2"})
    place = open_location(str(tmp_path / "out" / "knowledge"), {})
    number, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        number += 1
        place.publish(tmp_path / "first")
        status = killed_at(number, exchanges, lambda: place.publish(tmp_path / "second"))
        found = whole(tmp_path / "out" / "knowledge")
        assert found in ((first, second) if exchanges else (first, second, None)), number
        place.publish(tmp_path / "second")
        assert whole(tmp_path / "out" / "knowledge") == second
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["knowledge"]
    assert status == 0
    assert number > 3


def test_without_exchange_what_stepped_aside_comes_back_after_a_kill(tmp_path, monkeypatch):
    """Where folders cannot change places, a kill between two renames hides the artifact."""
    former = artifact(tmp_path / "knowledge", {"rows": b"1"})
    (tmp_path / "knowledge").rename(tmp_path / ".knowledge.former")
    with only_writer(tmp_path / "knowledge"):
        assert open_artifact(tmp_path / "knowledge") == former
    monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    second = artifact(tmp_path / "draft", {"rows": b"2"})
    replace_directory(tmp_path / "draft", tmp_path / "knowledge")
    assert open_artifact(tmp_path / "knowledge") == second
    assert not work_dir(tmp_path / "knowledge").exists()


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    with only_writer(tmp_path / "knowledge"):
        with pytest.raises(ArtifactError, match="process"):
            artifact(tmp_path / "knowledge")
        (tmp_path / "knowledge").mkdir()
    assert artifact(tmp_path / "knowledge") == open_artifact(tmp_path / "knowledge")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["knowledge"]


def test_the_lock_of_a_killed_writer_holds_nobody_up(tmp_path):
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        "from espalier.records.artifact import only_writer\n"
        "with only_writer(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = tmp_path / "knowledge"
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".knowledge.lock").exists()
    artifact(folder)
    assert not (tmp_path / ".knowledge.lock").exists()


def publish_often(source, target, times):
    for _ in range(times):
        open_location(str(target), {}).publish(source)


def test_two_writers_and_a_reader_of_one_folder(tmp_path):
    """Two processes replace it in turns; who fetches meanwhile gets one of both, whole."""
    made = [
        artifact(tmp_path / "first", {f"{n}": b"1" for n in range(9)}),
        artifact(tmp_path / "second", {f"{n}": b"2" for n in range(9)}),
    ]
    target = tmp_path / "out" / "knowledge"
    open_location(str(target), {}).publish(tmp_path / "first")
    writers = [
        get_context("spawn").Process(target=publish_often, args=(tmp_path / name, target, 40))
        for name in ("first", "second")
    ]
    for writer in writers:
        writer.start()
    read = []
    while any(writer.is_alive() for writer in writers):
        manifest = open_location(str(target), {}).fetch(tmp_path / "read")
        assert open_artifact(tmp_path / "read") == manifest
        read.append(made.index(manifest))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert open_artifact(target) in made
    assert len(read) > 3


def test_a_folder_replaced_by_its_like_is_read_again(tmp_path, monkeypatch):
    published = artifact(tmp_path / "first")
    place, copied = open_location(str(tmp_path / "knowledge"), {}), place_module._copied
    place.publish(tmp_path / "first")

    def raced(source, destination):
        monkeypatch.setattr(place_module, "_copied", copied)
        place.publish(tmp_path / "first")
        raise ArtifactError("a file is not there")

    monkeypatch.setattr(place_module, "_copied", raced)
    assert place.fetch(tmp_path / "read") == published


def test_two_fetches_into_one_folder_take_turns(tmp_path):
    published = artifact(tmp_path / "here", {f"{n}": os.urandom(1000) for n in range(30)})
    place = open_location(str(tmp_path / "here"), {})
    threads = [threading.Thread(target=place.fetch, args=(tmp_path / "in",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_artifact(tmp_path / "in") == published
    assert files(tmp_path / "in") == files(tmp_path / "here")


def test_a_link_out_of_the_artifact_is_not_copied(tmp_path):
    (tmp_path / "secret").write_bytes(b"1")
    artifact(tmp_path / "here", {"rows": b"1"})
    (tmp_path / "here" / "rows").unlink()
    (tmp_path / "here" / "rows").symlink_to(tmp_path / "secret")
    with pytest.raises(ArtifactError, match="link"):
        open_location(str(tmp_path / "here"), {}).fetch(tmp_path / "there")
    assert not (tmp_path / "there").exists()
