"""A profile names its family, and the family reads the section of the profile."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.config.environment import family_class, family_names, parsed_environment
from espalier_environments.python_math import PythonMath
from espalier_search.search_qa import SearchQA
from tests.unit.environments.prices import Prices, PricesConfig

PRICES = "tests.unit.environments.prices:Prices"


@pytest.mark.parametrize(
    ("name", "family"), [("search_qa", SearchQA), ("python_math", PythonMath), (PRICES, Prices)]
)
def test_a_family_is_found_by_name_or_import_path(name, family):
    assert family_class(name) is family
    assert isinstance(parsed_environment({"name": name}), family.config)
    assert name == PRICES or name in family_names()
    assert parsed_environment({}).name == "search_qa"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("python_maths", r"mean python_math\?"),
        ("chess", "'chess'.*python_math, .*search_qa"),
        ("tests.unit.environments.no_shop:Prices", "No module named"),
        ("tests.unit.environments.prices:Price", "'Price'"),
        ("tests.unit.environments.prices:PRICES", "PRICES"),
        ("tests.unit.environments.prices:", "tests.unit.environments.prices:"),
        (":Prices", "':Prices'"),
    ],
)
def test_what_is_no_family_is_refused_with_the_way_out(name, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Profile.model_validate({"environment": {"name": name}})


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"name": PRICES, "rates": 3}, r"environment\.rates: .*mean .*rate\?"),
        ({"name": PRICES, "rate": "much"}, r"environment\.rate: "),
        ("search_qa", "section"),
    ],
)
def test_settings_that_the_family_refuses_are_named(section, complaint):
    with pytest.raises(ValueError, match=complaint):
        parsed_environment(section)


def test_a_profile_keeps_its_familys_section_through_json():
    profile = Profile.model_validate({"environment": {"name": PRICES, "rate": 5}})
    assert profile.environment == PricesConfig(name=PRICES, rate=5)
    assert Profile.model_validate_json(profile.model_dump_json()).environment == profile.environment


@pytest.mark.parametrize("name", ["python_math", "search_qa", PRICES])
def test_reading_a_profile_loads_no_search_index(name):
    script = (
        "import sys; from espalier.config import Profile;"
        f"Profile.model_validate({{'environment': {{'name': {name!r}}}}});"
        "print(*{'bm25s', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == []
