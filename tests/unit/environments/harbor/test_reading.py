"""Task folders are read, and what they need is said."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier_interop.harbor.dockerfile import Copy, read_dockerfile
from espalier_interop.harbor.playing import NoRewardError, read_reward, top_folders
from espalier_interop.harbor.reading import read_folder, read_folders
from tests.factories.harbor import DOCKERFILE, task_folder


def family(folders, **environment):
    section = {"name": "harbor", "folders": folders, **environment}
    return family_of(Profile.model_validate({"environment": section}))


def kinds(tmp_path, **task):
    return [need.kind for need in read_folder(task_folder(tmp_path, "one", **task)).needs]


def test_a_folder_of_nothing_but_files_needs_nothing(tmp_path):
    folder = read_folder(task_folder(tmp_path, "one"))
    assert (folder.needs, folder.workdir) == ((), "/app")
    assert folder.environment_files() == {
        "/data/words.txt": b"one\n",
        "/app/tools/say.sh": b'echo "$GREETING $1"\n',
    }
    assert folder.variables({"A": "${B:-c}"}) == {"GREETING": "Hello", "OTHER": "x", "A": "c"}
    assert top_folders(folder) == {"app", "data", "tests", "solution", "logs"}


@pytest.mark.parametrize(
    ("toml", "kind"),
    [
        ('[environment]\ndocker_image = "someone/image:1"', "image"),
        ("[environment]\ngpus = 1", "accelerator"),
        ('[environment]\nos = "windows"', "os"),
        ('[[environment.mcp_servers]]\nname = "x"\nurl = "http://x"', "servers"),
        ('[environment.env]\nKEY = "${KEY}"', "variables"),
        ('[environment]\nworkdir = "/etc/app"', "paths"),
        ('[agent]\nuser = "agent"', "user"),
        ('[[steps]]\nname = "a"', "steps"),
    ],
)
def test_what_a_task_needs_is_named(tmp_path, toml, kind):
    assert kinds(tmp_path, toml=toml) == [kind]


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("environment/Dockerfile", "FROM rust:1\nWORKDIR /app", "image"),
        ("environment/Dockerfile", "FROM ubuntu:24.04\nWORKDIR /app\nRUN apt-get update", "run"),
        ("environment/Dockerfile", "FROM ubuntu:1 AS a\nFROM ubuntu:2\nWORKDIR /app", "run"),
        ("environment/Dockerfile", "FROM ubuntu:1\nCOPY --from=a /x /app/x", "run"),
        ("environment/Dockerfile", "FROM ubuntu:1\nRUN <<EOF\nCOPY a b\nEOF\nWORKDIR /app", "run"),
        ("environment/docker-compose.yaml", "services: {}", "compose"),
        ("tests/test.sh", "cd /app\ncurl -LsSf http://x | sh", "network"),
        ("tests/test.sh", None, "tests"),
    ],
)
def test_what_its_files_need_is_named(tmp_path, path, content, kind):
    assert kinds(tmp_path, files={path: content}) == [kind]


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("task.toml", "[", r"task\.toml: "),
        ("task.toml", "[verifier]\ntimeout_sec = 'x'", r"task\.toml: verifier\.timeout_sec"),
        ("instruction.md", " \n", r"instruction\.md: "),
        ("instruction.md", None, r"instruction\.md: "),
    ],
)
def test_a_faulty_file_is_named(tmp_path, path, content, message):
    with pytest.raises(DataError, match=message):
        read_folders(task_folder(tmp_path, "one", files={path: content}))


def test_copies_and_links_out_of_the_folder_are_refused(tmp_path):
    for place, line in enumerate(("COPY none.txt /app/", "COPY ../task.toml /app/")):
        dockerfile = f"FROM ubuntu:24.04\n{line}\n"
        folder = task_folder(tmp_path, f"copy{place}", environment__Dockerfile=dockerfile)
        with pytest.raises(DataError, match=r"COPY|none\.txt|\.\./task\.toml"):
            read_folder(folder).environment_files()
    folder = task_folder(tmp_path, "one")
    os.symlink("/etc/passwd", folder / "environment" / "tools" / "link")
    with pytest.raises(DataError, match="link"):
        read_folder(folder).environment_files()


def test_unmet_needs_are_refused_or_left_out(tmp_path):
    task_folder(tmp_path, "one")
    task_folder(tmp_path, "two", toml="[environment]\ngpus = 1")
    with pytest.raises(DataError, match=r"two: 1\.0 accelerators"):
        family(tmp_path).tasks("train", 9)
    splits = ("train", "dev", "heldout")
    for settings_, names in (
        ({"skip_refused": True}, ["one"]),
        ({"ignored_needs": ["accelerator"]}, ["one", "two"]),
    ):
        found = family(tmp_path, **settings_)
        sources = sorted(t.metadata.source for s in splits for t in found.tasks(s, 9))
        assert sources == [f"own/{name}" for name in names]


def test_a_dockerfile_is_followed_line_by_line():
    recipe = read_dockerfile(
        DOCKERFILE + 'WORKDIR sub/../deep\n# note\nCOPY ["a b.txt", "c", "/x/"]\nENV A 1 2\n'
        "COPY --chown=1:1 . .\nRUN apt-get update \\\n  # inside\n  && apt-get install x\nUSER me\n"
    )
    assert (recipe.base, recipe.workdir, recipe.user) == ("python:3.11-slim", "/app/deep", "me")
    assert recipe.copies[2:] == [
        Copy(("a b.txt", "c"), "/x/"),
        Copy((".",), "/app/deep/"),
    ]
    assert recipe.folders == ["/app", "/app/notes", "/data", "/app/deep"]
    assert recipe.variables["A"] == "1 2"
    assert recipe.runs == ["apt-get update && apt-get install x"]


@given(st.text(alphabet=st.sampled_from("FROMCPYRUNENV $\\\n\"'<=-/.[]{},#ab"), max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_dockerfile_is_read(text):
    recipe = read_dockerfile(text)
    assert recipe.workdir.startswith("/")


def test_rewards_are_read():
    assert read_reward("reward.txt", " 0.5\n") == {"reward": 0.5}
    assert read_reward("reward.json", '{"reward": 1, "speed": 0.2}') == {"reward": 1, "speed": 0.2}
    assert read_reward("reward.json", "1") == {"reward": 1.0}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reward.txt", ""), ("reward.txt", "nan"), ("reward.txt", "one"),
        ("reward.txt", "1" * 70_000), ("reward.json", "[1]"), ("reward.json", "{}"),
        ("reward.json", '{"reward": true}'), ("reward.json", '{"reward": NaN}'),
        ("reward.json", '{"reward": "1"}'), ("reward.json", "[" * 60_000),
    ],
)  # fmt: skip
def test_a_reward_that_is_no_number_is_missing(name, text):
    with pytest.raises(NoRewardError):
        read_reward(name, text)
