"""Attempts to cheat verifiers: none is paid, and each fools a naive grader."""

import importlib

import pytest

from tests.benchmarks.hacks.__main__ import FAMILIES, LIGHT


def module(family):
    return importlib.import_module(f"tests.benchmarks.hacks.{family}")


@pytest.mark.parametrize("family", LIGHT)
def test_no_attempt_is_paid_that_fools_a_naive_grader(family):
    with module(family).opened():
        for hack in module(family).HACKS:
            assert hack.works(), f"{hack.name} fools nobody"
            assert not hack.cheats(), f"{hack.name} was paid"


def test_the_library_has_thirty_attempts_of_different_names():
    names = [(family, hack.name) for family in FAMILIES for hack in module(family).HACKS]
    assert len(set(names)) == len(names) >= 30
