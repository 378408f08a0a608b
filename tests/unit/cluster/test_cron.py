from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster.cron import checked_cron, cron_in
from espalier.records import ClusterError
from tests.fakes.robfig_cron import Cron


@pytest.mark.parametrize(
    "text",
    [
        "60 0 0 * * *", "0 60 0 * * *", "0 0 24 * * *", "0 0 0 0 * *", "0 0 0 32 * *",
        "0 0 0 * 13 *", "0 0 0 * * 7", "0 0 0 * * MOON", "0 0 0 5-1 * *", "0 0 0 * * */0",
        "0 0 0 * * ,", "0 0 0 * * -1", "a b c d e f", "0 0 0 \u0661 * *", "@daily", "",
        "0 0 0 * * * 2026", "0 0 0 30 2 *", "0 0 0 31 4,6,9,11 ?",
    ],
)  # fmt: skip
def test_an_invalid_cron_expression_is_refused(text):
    with pytest.raises(ClusterError, match="--cron"):
        checked_cron(text)


@given(st.text(alphabet="0123456789*?/-, SUNMOjan@\t\n", max_size=40))
def test_anything_is_read_or_refused(text):
    with suppress(ClusterError):
        assert len(checked_cron(text).split()) == 6
    assert checked_cron("  30 30  4-20/2 * JAN-JUN MON-FRI ") == "30 30 4-20/2 * JAN-JUN MON-FRI"


WINTER = datetime(2026, 1, 5, tzinfo=UTC)
SUMMER = datetime(2026, 7, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "expected"),
    [
        ("0 0 3 * * *", "Asia/Tokyo", "0 0 18 * * *"),
        ("0 15 * * * *", "Asia/Kathmandu", "0 30 * * * *"),
        ("*/5 */10 * * * *", "Asia/Tokyo", "*/5 0,10,20,30,40,50 * * * *"),
        ("0 0 3 * * MON-FRI", "Asia/Tokyo", "0 0 18 * * 0,1,2,3,4"),
        ("0 0 20 * * SUN", "America/Bogota", "0 0 1 * * 1"),
        ("0 0 12 1 JAN *", "Asia/Tokyo", "0 0 3 1 JAN *"),
    ],
)
def test_a_time_is_written_in_the_controllers_zone(cron, zone, expected):
    assert cron_in(cron, zone, "UTC", WINTER, None) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "said"),
    [
        ("0 0 3 1 * *", "Asia/Tokyo", "days"),
        ("0 0 3 * JAN *", "Asia/Tokyo", "days"),
        ("0 0 3,12 * * MON", "Asia/Tokyo", "days"),
        ("0 0,45 9 * * *", "Asia/Kolkata", "UTC"),  # half hours that are no product
        ("0 0 3 * * *", "Europe/Berlin", "2026-03-30"),  # the clock is changed
    ],
)
def test_what_cannot_be_moved_is_refused(cron, zone, said):
    with pytest.raises(ClusterError, match=said):
        cron_in(cron, zone, "UTC", WINTER, None)


def test_a_schedule_between_two_changes_of_the_clock_is_moved():
    for start, expected in ((WINTER, "0 0 2 * * *"), (SUMMER, "0 0 1 * * *")):
        until = start + timedelta(days=60)
        assert cron_in("0 0 3 * * *", "Europe/Berlin", "UTC", start, until) == expected
    # zones that change together need no change
    assert cron_in("0 0 3 1 * *", "Europe/Berlin", "Europe/Paris", WINTER, None) == "0 0 3 1 * *"


HOURS = st.sampled_from(["*", "3", "*/6", "0,12", "22-23"])
MINUTES = st.sampled_from(["0", "30", "15,45", "*/20"])
WEEKDAYS = st.sampled_from(["*", "MON", "0,6", "1-5"])


@given(MINUTES, HOURS, WEEKDAYS, st.sampled_from(["Asia/Tokyo", "Asia/Kolkata", "America/Bogota"]))
def test_moved_times_are_those_that_were_meant(minutes, hours, weekdays, zone):
    cron = f"0 {minutes} {hours} * * {weekdays}"
    with suppress(ClusterError):
        moved = Cron(cron_in(cron, zone, "UTC", WINTER, None))
        meant, after = Cron(cron), WINTER.timestamp()
        offset_s = WINTER.astimezone(ZoneInfo(zone)).utcoffset().total_seconds()
        for _ in range(20):
            following = moved.next(after)
            assert following == meant.next(after + offset_s) - offset_s
            after = following
