"""The page names what the code has."""

from pathlib import Path

from espalier_interop import mcp
from espalier_interop.mcp.config import McpConfig, ServerConfig

ROOM = Path(mcp.__file__).parent


def test_page_names_every_key_and_module():
    page = (ROOM / "README.md").read_text(encoding="utf-8")
    keys = (McpConfig.model_fields.keys() - {"name"}) | ServerConfig.model_fields.keys()
    assert [key for key in keys if f"| {key} |" not in page] == []
    modules = {path.name for path in ROOM.glob("*.py")} - {"__init__.py"}
    assert [name for name in modules if name not in page] == []
