"""The other processes of a team, whoever starts them, and the end of training when one is lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from espalier.records import TrainingError

_LOOKS_EVERY_S = 1.0
_SETTLES_WITHIN_S = 30.0
"""A broken connection is felt at once; that a process on another node has ended is known later."""
_SILENT_FOR_S = 30.0
"""How long after a loss nothing may be felt of it."""

_log = logging.getLogger(__name__)

Duty = Callable[[int, int], None]
"""What a companion does, told its rank and the number of its GPU among those that it sees."""


class Companions(Protocol):
    """The processes beside the first; whoever made them ends them."""

    @property
    def address(self) -> str:
        """Of this machine, as they reach it."""
        ...

    @property
    def share_cores(self) -> bool:
        """Whether they have the same CPU cores as this process."""
        ...

    def start(self, duty: Duty) -> None:
        """Have ranks 1, 2, ... do their duty; it can be pickled."""
        ...

    def loss(self) -> str | None:
        """Which of them has ended otherwise than well, how, and what to do about it."""
        ...

    def wait(self) -> None:
        """Return when all have ended."""
        ...


def told_loss(rank: int, count: int, how: str, *, where: str = "") -> str:
    """What is said of a lost companion.

    Args:
        rank: of the one that is lost, among `count`.
        count: of processes, the first included.
        how: it ended.
        where: it was, if that is not this machine.
    """
    place = f", on node {where}," if where else ""
    return (
        f"rank {rank} of {count} processes that train together{place} has ended: {how}; the same "
        "command goes on from the last checkpoint"
    )


MakesCompanions = Callable[[int, torch.device], AbstractContextManager[Companions]]
"""For how many processes, the first included, and for which kind of device; ends them at its end.
Raises TrainingError where there is no place for so many."""


@contextmanager
def watched(companions: Companions) -> Generator[None]:
    """End the block when a companion is lost, and say which.

    Raises:
        TrainingError: one is lost.
    """
    over = threading.Event()
    watch = threading.Thread(target=_break_silence, args=(companions, over), daemon=True)
    watch.start()
    try:
        yield
    except RuntimeError as error:  # torch has no narrower one for a peer that is gone
        # this process still is one of the group: who ends now was not ended by it
        if loss := _loss_soon(companions):
            raise TrainingError(loss) from error
        raise
    finally:
        over.set()
        watch.join()


def _break_silence(companions: Companions, over: threading.Event) -> None:
    """End this process where it would wait for a companion whose machine is gone.

    A machine that is switched off closes no connection, and who waits inside of torch hears no
    exception: only the end of the process is sure.
    """
    while not over.wait(_LOOKS_EVERY_S):
        if (loss := companions.loss()) and not over.wait(_SILENT_FOR_S):
            _log.critical("error: %s", loss)
            os._exit(1)


def _loss_soon(companions: Companions) -> str | None:
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while (loss := companions.loss()) is None and time.monotonic() < deadline:
        time.sleep(_LOOKS_EVERY_S / 10)
    return loss
