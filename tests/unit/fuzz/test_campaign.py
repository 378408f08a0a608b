"""The fuzzers find what is planted, make it small, and repeat it."""

import asyncio
import json
import mmap
import random

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz.campaign import Target, Violation, case_of, described, fuzz
from tests.fuzz.mutations import changed_bytes, changed_json, chunked, request_bytes, written_json
from tests.fuzz.parsers import ParserTarget


class Planted(Target):
    """Fails where a case has an "x" and a "y"."""

    name = "planted"
    case_s = 0.1
    between_checks = 50

    def __init__(self, fault=None):
        self.fault = fault
        self.checked = 0

    def make(self, dice):
        return bytes(dice.choice(b"abcdefxy") for _ in range(40))

    async def run(self, case):
        if b"x" in case and b"y" in case:
            if self.fault is not None:
                await self.fault()
            raise Violation("x and y")
        return "fine"

    async def check(self):
        self.checked += 1


def fuzzed(target, **fields):
    said = []
    asked = {"seed": 3, "cases": 100, "seconds": 60, **fields}
    return asyncio.run(fuzz(target, say=said.append, **asked)), said


def test_a_planted_fault_is_found_and_made_small():
    report, said = fuzzed(Planted())
    assert report.failures
    assert sorted(report.failures[0].case) == sorted(b"xy")
    number = report.failures[0].number
    assert f"python -m tests.fuzz planted --seed 3 --case {number}" in "\n".join(said)
    case = case_of(Planted(), 3, number)
    assert b"x" in case
    assert case == case_of(Planted(), 3, number)
    assert case != case_of(Planted(), 4, number)


@pytest.mark.parametrize("fault", [lambda: asyncio.sleep(60), lambda: asyncio.to_thread(int, "x")])
def test_a_hang_and_an_error_of_any_kind_are_failures(fault):
    report, _ = fuzzed(Planted(fault), cases=2, seconds=5)
    assert report.failures[0].reason.startswith(("no end", "ValueError"))


def test_a_parser_that_does_not_end_is_interrupted():
    class Endless(ParserTarget):
        name, case_s = "endless", 0.2

        def make(self, dice):
            return b""

        def read(self, case):
            while True:
                pass

    report, _ = fuzzed(Endless(), cases=1)
    assert report.failures[0].reason == "a parser does not end"


def test_memory_that_grows_is_noticed():
    # Of mappings: what an earlier test freed may serve a bytearray without any growth.
    kept = []

    class Leaky(Planted):
        async def run(self, case):
            kept.append(mmap.mmap(-1, 1 << 20))
            kept[-1].write(random.Random(0).randbytes(1 << 20))
            return "fine"

    report, _ = fuzzed(Leaky(), cases=120)
    assert not report.is_flat
    assert report.growth_mib > 30


def test_well_behaved_requests_are_made_between_the_cases():
    class Upright(Planted):
        def make(self, dice):
            return b"a"

        async def check(self):
            await super().check()
            if self.checked == 2:
                raise Violation("it is down")

    target = Upright()
    report, _ = fuzzed(target, cases=200)
    assert target.checked == 4
    assert [failure.reason for failure in report.failures] == [
        "a well-behaved request after 100 cases: it is down"
    ]


def test_changes_follow_the_seed_and_stay_of_their_kind():
    value = {"a": [1, {"b": "text"}], "c": None}
    for number in range(300):
        first, again = (
            (changed_json(d, value), changed_bytes(d, b"abc"), chunked(d, b"x" * 500),
             request_bytes(d, "GET", "/", b"{}"))
            for d in (random.Random(number), random.Random(number))
        )  # fmt: skip
        assert repr(first) == repr(again)
        assert isinstance(written_json(random.Random(number), first[0]), bytes)
    assert value == {"a": [1, {"b": "text"}], "c": None}
    assert chunked(random.Random(5), b"q" * 99).count(b"q") == 99


def test_figures_come_last_and_failures_end_with_status_one(monkeypatch, capsys):
    monkeypatch.setitem(command.TARGETS, "calls", Planted)
    with pytest.raises(SystemExit) as ended:
        command.main(["calls", "--seed", "3", "--cases", "50"])
    assert ended.value.code == 1
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["fuzz"][0]["failures"] >= 1
    with pytest.raises(SystemExit) as ended:
        command.main(["calls", "--bytes", "YQ=="])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["outcome"] == "fine"


def test_a_failure_tells_how_to_see_it_again():
    report, _ = fuzzed(Planted(), max_failures=1)
    (failure, *_) = report.failures
    assert "--bytes" in described(Planted(), 3, failure)
