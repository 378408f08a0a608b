"""The page of each built-in family names what its code has."""

from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of

COMPONENTS = Path(__file__).parents[3] / "components"


@pytest.fixture(
    params=[
        "customer_service",
        "code",
        "function_calling",
        "procedural",
        "python_math",
        "search_qa",
        "shop",
        "software_repair",
        "sql",
        "web",
    ]
)
def family(request):
    return family_of(Profile.model_validate({"environment": {"name": request.param}}))


@pytest.fixture
def page(family):
    return (folder_of(family) / "README.md").read_text(encoding="utf-8")


def folder_of(family):
    (found,) = COMPONENTS.glob(f"espalier_*/{family.name}")
    return found


def test_page_names_every_tool_with_its_arguments(family, page):
    for tool in family.specs:
        arguments = tool.parameters["properties"].items()
        shown = ", ".join(f"{name}: {schema['type']}" for name, schema in arguments)
        assert f"`{tool.name}({shown})`" in page


def test_page_names_every_config_key_with_its_default(family, page):
    for key, field in family.config.model_fields.items():
        if key != "name":
            default = field.default
            plain = isinstance(default, str | int | float)
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert f"| {key} | {shown} |" in page if plain else f"| {key} |" in page


def test_page_names_every_module_and_kind_of_self_play(family, page):
    modules = {path.name for path in folder_of(family).glob("*.py")} - {"__init__.py"}
    assert [name for name in modules if name not in page] == []
    assert [name for name in getattr(family, "self_play", ()) if f'"{name}"' not in page] == []
