"""A server that is away is asked again for a stated time, and a refusal is not."""

import pytest

from espalier.records import (
    Patience,
    RegistryAwayError,
    RegistryError,
    StorageAwayError,
    patient,
    patiently,
)


class Server:
    """Fails `failures` times; its clock moves by what is slept."""

    def __init__(self, failures, error):
        self.failures, self.error = failures, error
        self.tries, self.now, self.pauses, self.lines = 0, 0.0, [], []

    def ask(self):
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return "answer"

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def patience(self, total_s):
        return Patience(
            total_s=total_s, say=self.lines.append, sleep=self.sleep, clock=lambda: self.now
        )


@pytest.mark.parametrize("error", [RegistryAwayError("gone."), StorageAwayError("gone.")])
def test_a_server_that_comes_back_is_asked_with_growing_pauses(error):
    server = Server(6, error)
    with patient(server.patience(600)):
        assert patiently(server.ask) == "answer"
    assert server.pauses == [5, 10, 20, 40, 60, 60]
    assert len(server.lines) == 6


def test_the_last_try_is_when_the_time_is_over():
    server = Server(99, RegistryAwayError("gone."))
    with patient(server.patience(20)), pytest.raises(RegistryAwayError, match="gone"):
        patiently(server.ask)
    assert server.pauses == [5, 10, 5]
    assert server.tries == 4


def test_each_outage_has_the_whole_time():
    server = Server(2, RegistryAwayError("gone."))
    with patient(server.patience(20)):
        patiently(server.ask)
        server.tries = 0
        assert patiently(server.ask) == "answer"


def test_a_refusal_or_no_patience_ends_it_at_once():
    refusing, away = Server(1, RegistryError("no such run")), Server(1, RegistryAwayError("gone."))
    with patient(refusing.patience(600)), pytest.raises(RegistryError, match="run"):
        patiently(refusing.ask)
    with pytest.raises(RegistryAwayError):
        patiently(away.ask)
    assert (refusing.tries, away.tries) == (1, 1)
    assert refusing.pauses == away.pauses == []
