"""What a job is given of memory, by which of the kernel's limits."""

import resource

import pytest

from sandboxd import job, kernel

GIB = 2**30


@pytest.fixture
def given(monkeypatch):
    """What limits were set, without setting them."""
    found = {}
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: found.update({what: pair[0]}))
    monkeypatch.setattr(job, "own_bytes", {"VmData": 10, "VmSize": 30}.get)
    return found


@pytest.mark.parametrize(
    ("is_program", "addresses"), [(True, GIB + job.FILES_BYTES), (False, GIB + 30)]
)
def test_addresses_are_limited_where_data_is_not(monkeypatch, given, is_program, addresses):
    monkeypatch.setattr(kernel, "can_map", lambda size: size >= GIB)
    job._limit_memory(GIB, is_program=is_program)
    assert given[resource.RLIMIT_AS] == addresses


@pytest.mark.parametrize(("is_program", "data"), [(True, GIB), (False, GIB + 10)])
def test_addresses_may_be_kept_free_where_data_is_limited(monkeypatch, given, is_program, data):
    monkeypatch.setattr(kernel, "can_map", lambda _: False)
    job._limit_memory(GIB, is_program=is_program)
    assert given == {resource.RLIMIT_DATA: data}


@pytest.mark.parametrize(("size", "can"), [(2**20, True), (2**50, False), (2**70, False)])
def test_what_can_be_mapped_is_found_by_mapping_it(size, can):
    assert kernel.can_map(size) is can
