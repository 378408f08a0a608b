"""The page of each built-in family names what its code has."""

from pathlib import Path

import pytest

from espalier import environments
from espalier.config import Profile
from espalier.environments import family_of

ROOM = Path(environments.__file__).parent


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
    return (ROOM / family.name / "README.md").read_text(encoding="utf-8")


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
    modules = {path.name for path in (ROOM / family.name).glob("*.py")} - {"__init__.py"}
    assert [name for name in modules if name not in page] == []
    assert [name for name in getattr(family, "self_play", ()) if f'"{name}"' not in page] == []
