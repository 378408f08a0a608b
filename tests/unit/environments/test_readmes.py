"""The page of each built-in family names what its code has."""

from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier_interop import harbor, mcp
from espalier_interop.harbor.config import HarborConfig
from espalier_interop.mcp.config import McpConfig, ServerConfig

COMPONENTS = Path(__file__).parents[3] / "components"


@pytest.fixture(
    params=[
        "customer_service", "code", "function_calling", "procedural", "python_math", "search_qa",
        "shop", "software_repair", "sql", "web",
    ]
)  # fmt: skip
def family(request):
    return family_of(Profile.model_validate({"environment": {"name": request.param}}))


@pytest.fixture
def page(family):
    return (folder_of(family) / "README.md").read_text(encoding="utf-8")


def folder_of(family):
    (found,) = COMPONENTS.glob(f"espalier_*/{family.name}")
    return found


def test_page_names_every_tool_key_module_and_self_play(family, page):
    for tool in family.specs:
        arguments = tool.parameters["properties"].items()
        shown = ", ".join(f"{name}: {schema['type']}" for name, schema in arguments)
        assert f"`{tool.name}({shown})`" in page
    for key, field in family.config.model_fields.items():
        default = field.default
        plain = isinstance(default, str | int | float)
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert key == "name" or (f"| {key} | {shown} |" if plain else f"| {key} |") in page
    modules = {path.name for path in folder_of(family).glob("*.py")} - {"__init__.py"}
    assert [name for name in modules if name not in page] == []
    assert [name for name in getattr(family, "self_play", ()) if f'"{name}"' not in page] == []


@pytest.mark.parametrize(
    ("room", "configs"), [(harbor, [HarborConfig]), (mcp, [McpConfig, ServerConfig])]
)
def test_page_of_an_adapter_names_every_key_and_module(room, configs):
    folder = Path(room.__file__).parent
    page = (folder / "README.md").read_text(encoding="utf-8")
    keys = {key for config in configs for key in config.model_fields} - {"name"}
    assert [key for key in keys if f"| {key} |" not in page] == []
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert [name for name in modules if name not in page] == []
