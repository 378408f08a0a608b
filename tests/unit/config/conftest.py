import pytest

from espalier.config import load_profile


@pytest.fixture
def load(tmp_path):
    """Loads a profile that says nothing but its overrides."""

    def loaded(*overrides):
        path = tmp_path / "profile.toml"
        path.write_text("", encoding="utf-8")
        return load_profile(path, overrides)

    return loaded
