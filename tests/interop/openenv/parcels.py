"""The family that plays the parcel desk of parcel_server.py, and shows how it is done."""

import re

from espalier.records import ToolCalls
from espalier_interop.openenv import OpenEnv
from tests.interop.openenv.parcel_words import CARRIER_OF

_ASKED = re.compile(r"send (\d+) of (\w+) to \w+ (.+) , what is the fee \?")


class Parcels(OpenEnv):
    """Any OpenEnv server with a teacher of one's own is a family like this."""

    name = "parcels_on_openenv"
    splits_digits = True

    def demonstrate(self, task):
        """Weigh, ask for the fee, answer."""
        count, item, how = _ASKED.fullmatch(task.question).groups()
        weight = yield _act("weigh", item, int(count))
        fee = yield _act("fee", CARRIER_OF[how], int(weight))
        yield _act("answer", fee, 0)


def _act(do, what, count):
    return ToolCalls.one("act", {"do": do, "what": what, "count": count})
