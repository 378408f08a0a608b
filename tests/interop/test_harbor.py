"""Task folders that Harbor's package brings are read as its own models read them."""

import shutil

from tests.factories.harbor import task_folder
from tests.interop.harbor.__main__ import compare
from tests.interop.venvs import python_of


def test_folders_are_read_as_harbors_own_models_do(tmp_path):
    packages = next(python_of("harbor").parents[1].glob("lib/python*/site-packages"))
    shutil.copytree(packages / "harbor" / "cli" / "template-task", tmp_path / "template")
    (tmp_path / "template" / "instruction.md").write_text("Do it.")
    task_folder(tmp_path, "plain")
    task_folder(
        tmp_path, "image", toml='[environment]\ndocker_image = "a/b:1"\ngpus = 2\nos = "Linux"'
    )
    task_folder(
        tmp_path, "more",
        toml='[agent]\ntimeout_sec = 9\n[environment]\nworkdir = "/app"\n'
        'cpus = 2\nmemory = "2G"\n[environment.env]\nA = "${B:-c}"\n'
        '[[environment.mcp_servers]]\nname = "x"\ntransport = "http"\nurl = "http://x/mcp"\n',
    )  # fmt: skip
    found = compare(tmp_path)
    assert (found["folders"], found["read"], found["equal"]) == (4, 4, 4), found["remarks"]
