"""robfig/cron 1.2.0 (parser.go, spec.go), as Kubeflow's server and controller read expressions."""

from datetime import UTC, datetime, timedelta

BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NAMES = {4: {name: number for number, name in enumerate(MONTHS, 1)}}
NAMES[5] = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}


class CronError(Exception):
    pass


class Cron:
    def __init__(self, spec):
        fields = spec.split()
        if not 5 <= len(fields) <= 6:
            raise CronError(f"Expected 5 to 6 fields, found {len(fields)}: {spec}")
        fields = [*fields, "*"][:6]
        self.values = [self._field(text, number) for number, text in enumerate(fields)]
        self.stars = [any(part[0] in "*?" for part in text.split(",") if part) for text in fields]

    def _field(self, text, number):
        values = set()
        for part in text.split(","):
            if part:
                values.update(self._range(part, number))
        return values

    def _range(self, part, number):
        low, high = BOUNDS[number]
        span, *steps = part.split("/")
        ends = span.split("-")
        if ends[0] in ("*", "?"):
            start, end = low, high
        else:
            start = self._number(ends[0], number)
            end = self._number(ends[1], number) if len(ends) == 2 else start
        if steps and len(ends) == 1:
            end = high
        if start < low:
            raise CronError(f"Beginning of range ({start}) below minimum ({low}): {part}")
        if end > high:
            raise CronError(f"End of range ({end}) above maximum ({high}): {part}")
        return range(start, end + 1, self._number(steps[0], None) if steps else 1)

    @staticmethod
    def _number(text, number):
        named = NAMES.get(number, {})
        if text.lower() in named:
            return named[text.lower()]
        if not text.isdecimal():
            raise CronError(
                f"Failed to parse int from {text}: strconv.Atoi: parsing {text!r}: invalid syntax"
            )
        return int(text)

    def next(self, after):
        """Seconds of the first time after `after`, in a controller that reads UTC."""
        seconds, minutes, hours, days, months, weekdays = (sorted(one) for one in self.values)
        moment = datetime.fromtimestamp(int(after), UTC)
        for ahead in range(5 * 366):
            day = (moment + timedelta(days=ahead)).date()
            fits = (day.day in days, day.isoweekday() % 7 in weekdays)
            both = self.stars[3] or self.stars[5]
            if day.month not in months or not (all(fits) if both else any(fits)):
                continue
            for hour in hours:
                for minute in minutes:
                    for second in seconds:
                        time = datetime(
                            day.year, day.month, day.day, hour, minute, second, tzinfo=UTC
                        )
                        if time.timestamp() > int(after):
                            return time.timestamp()
        raise AssertionError("the controller would hang here")
