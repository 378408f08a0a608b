"""Loading a version gives the registered bytes back, or nothing."""

from __future__ import annotations

import pytest

from espalier.records import RegistryError
from espalier.registry import champion_policy, load_version


def stored(bench, name: str):
    version = bench.model.version("challenger")
    return next((bench.model_root() / version.run_id).rglob(name))


def tree(directory):
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*")}


@pytest.mark.parametrize("reference", ["{}@champion", "{}/1", "models:/{}@challenger"])
def test_loaded_policy_is_the_registered_one_bit_for_bit(bench, reference):
    bench.lead(0.6)
    loaded = load_version(bench.target.uri, reference.format(bench.name), bench.root / "loaded")
    assert tree(loaded) == tree(bench.root / "run1" / "trained_policy" / "policy")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "files.json"])
def test_a_file_changed_in_the_store_is_refused(bench, name):
    bench.register(0.6)
    stored(bench, name).write_bytes(b"{}")
    with pytest.raises(RegistryError, match=name):
        load_version(bench.target.uri, f"{bench.name}@challenger", bench.root / "to" / "loaded")
    assert list((bench.root / "to").iterdir()) == []


def test_an_added_or_missing_file_is_refused(bench):
    bench.register(0.6)
    reference, config = f"{bench.name}@challenger", stored(bench, "config.json")
    (config.parent / "extra.py").write_text("import os")
    with pytest.raises(RegistryError, match=r"extra\.py"):
        load_version(bench.target.uri, reference, bench.root / "loaded")
    config.unlink()
    with pytest.raises(RegistryError, match=r"config\.json"):
        load_version(bench.target.uri, reference, bench.root / "loaded")


def test_no_champion_or_a_moved_one_does_not_load(bench):
    with pytest.raises(RegistryError, match="champion"):
        champion_policy(bench.target.uri, bench.name, bench.root / "loaded")
    bench.register(0.6)
    bench.model.point("champion", bench.model.version("1"))
    with pytest.raises(RegistryError, match="gate"):
        champion_policy(bench.target.uri, bench.name, bench.root / "loaded")
