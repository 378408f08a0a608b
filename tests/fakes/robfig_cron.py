"""robfig/cron 1.2.0 (parser.go, spec.go), as Kubeflow's server and controller read expressions."""

import re
from datetime import UTC, datetime

from cronsim import CronSim
from cronsim.cronsim import SYMBOLIC_DAYS, SYMBOLIC_MONTHS

MOST = (59, 59, 23, 31, 12, 6)
NAMES = (*SYMBOLIC_DAYS, *SYMBOLIC_MONTHS)


class CronError(Exception):
    pass


class Cron:
    def __init__(self, spec):
        fields = spec.split()
        if not 5 <= len(fields) <= 6:
            raise CronError(f"Expected 5 to 6 fields, found {len(fields)}: {spec}")
        fields = [*fields, "*"][:6]
        for text, most in zip(fields, MOST, strict=True):
            for part in re.findall(r"\w+", re.sub(r"/\d+", "", text)):
                if part.isdecimal() and int(part) > most:
                    raise CronError(f"End of range ({part}) above maximum ({most}): {part}")
                if not part.isdecimal() and part.upper() not in NAMES:
                    raise CronError(
                        f"Failed to parse int from {part}: strconv.Atoi: parsing {part!r}: "
                        "invalid syntax"
                    )
        self.spec = " ".join(fields).replace("?", "*")

    def next(self, after):
        """Seconds of the first time after `after`, in a controller that reads UTC."""
        return next(CronSim(self.spec, datetime.fromtimestamp(int(after), UTC))).timestamp()
