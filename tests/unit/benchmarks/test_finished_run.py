"""The profile of a finished run that a benchmark measures on."""

import argparse

import pytest

from espalier.config import Profile
from tests.benchmarks.finished_run import add_run_options, profile_of_run


def options_for(*given):
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return parser.parse_args(list(map(str, given)))


def test_the_profile_that_is_named_goes_before_the_saved_one(tmp_path):
    saved, named = Profile(seed=3), tmp_path / "named.toml"
    (tmp_path / "profile.json").write_text(saved.model_dump_json())
    named.write_text("seed = 4")
    assert profile_of_run(options_for("--run", tmp_path)) == saved
    options = options_for("--run", tmp_path, "--profile", named)
    assert profile_of_run(options) == Profile(seed=4)


def test_a_folder_without_a_profile_ends_the_benchmark(tmp_path):
    with pytest.raises(SystemExit, match=r"has no profile\.json; name a finished run with --run"):
        profile_of_run(options_for("--run", tmp_path))
