"""Tests of one folder stay in one process: what they share is made once, not once a process.

Examples of hypothesis have no time limit: on a busy machine any of them may take long. They are the
same in every run, so that what was tested decides whether a change passes; `pytest
--hypothesis-profile=search` draws many others.
"""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

UNIT = Path(__file__).parent

settings.register_profile("unit", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("search", max_examples=3000, deadline=None)
settings.load_profile("unit")
# It would draw constants of the modules that happen to be loaded, which are others in each worker,
# and read the source of all of them for that.
providers.is_local_module_file = lambda _path: False


def pytest_collection_modifyitems(config, items):
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.path.is_relative_to(UNIT):
            folder = item.path.relative_to(UNIT).parts[0]
            item.add_marker(pytest.mark.xdist_group(name=folder))
