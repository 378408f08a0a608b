"""Modules as one program for a sandbox."""

from pathlib import Path

import pytest

from espalier.environments import server_process
from espalier.environments.joined_source import joined_source
from espalier_interop import mcp, openenv

SERVERS = [(mcp, {"Server", "reply_to"}), (openenv, {"Server", "BrokenError"})]


@pytest.mark.parametrize(("family", "own"), SERVERS, ids=["mcp", "openenv"])
def test_what_runs_beside_servers_needs_nothing_of_ours(family, own):
    inside = Path(family.__file__).with_name("inside.py")
    source = joined_source(Path(server_process.__file__), inside)
    assert "import" in source
    assert "espalier." not in source
    names = {}
    exec(compile(source, "inside.py", "exec"), names)
    assert names.keys() >= own | {"told", "started", "read_object"}


def test_imports_of_each_other_are_left_out(tmp_path):
    (tmp_path / "one.py").write_text("from __future__ import annotations\nimport json\nA = 1\n")
    imports = "from espalier.one import (\n    A,\n    B,\n)\nfrom own.folder.one import A as B\n"
    (tmp_path / "two.py").write_text(f"{imports}C = A + 1\n")
    source = joined_source(tmp_path / "one.py", tmp_path / "two.py")
    assert source == "from __future__ import annotations\nimport json\nA = 1\n\nC = A + 1\n"
