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
        "0 0 3 * * *",
        "0 */15 * * * ?",
        "0 0 0 1,15 JAN-JUN *",
        "30 30 4-20/2 * * MON-FRI",
        "0 0 9 * 12 sun",
        "59 59 23 31 12 6",
    ],
)
def test_a_valid_cron_expression_is_accepted(text):
    assert checked_cron(f"  {text.replace(' ', '   ')} ") == text


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


def test_five_cron_fields_are_answered_with_six():
    with pytest.raises(ClusterError, match=r"write '0 0 3 \* \* 1'"):
        checked_cron("0 3 * * 1")


@given(st.text(alphabet="0123456789*?/-, SUNMOjan@\t\n", max_size=40))
def test_anything_is_read_or_refused(text):
    with suppress(ClusterError):
        assert len(checked_cron(text).split()) == 6


WINTER = datetime(2026, 1, 5, tzinfo=UTC)
SUMMER = datetime(2026, 7, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "expected"),
    [
        ("0 0 3 * * *", "Asia/Tokyo", "0 0 18 * * *"),
        ("0 0 12 * * *", "Asia/Tokyo", "0 0 3 * * *"),
        ("0 30 */6 * * *", "Asia/Kolkata", "0 0 1,7,13,19 * * *"),
        ("0 15 * * * *", "Asia/Kathmandu", "0 30 * * * *"),
        ("*/5 */10 * * * *", "Asia/Tokyo", "*/5 0,10,20,30,40,50 * * * *"),
        ("0 0 3 * * MON-FRI", "Asia/Tokyo", "0 0 18 * * 0,1,2,3,4"),
        ("0 0 20 * * SUN", "America/Bogota", "0 0 1 * * 1"),
        ("0 0 12 1 JAN *", "Asia/Tokyo", "0 0 3 1 JAN *"),
        ("0 0 3 * * *", "UTC", "0 0 3 * * *"),
    ],
)
def test_a_time_is_written_in_the_controllers_zone(cron, zone, expected):
    assert cron_in(cron, zone, "UTC", WINTER, None) == expected


@pytest.mark.parametrize(
    "cron", ["0 0 3 1 * *", "0 0 3 * JAN *", "0 0 3,12 * * MON", "0 0 3 1 * MON"]
)
def test_days_that_would_move_are_refused(cron):
    with pytest.raises(ClusterError, match="its days would shift"):
        cron_in(cron, "Asia/Tokyo", "UTC", WINTER, None)


def test_half_hours_that_are_no_product_are_refused():
    with pytest.raises(ClusterError, match="cannot be written in UTC"):
        cron_in("0 0,45 9 * * *", "Asia/Kolkata", "UTC", WINTER, None)


def test_a_schedule_between_two_changes_of_the_clock_is_moved():
    until = WINTER + timedelta(days=60)
    assert cron_in("0 0 3 * * *", "Europe/Berlin", "UTC", WINTER, until) == "0 0 2 * * *"
    until = SUMMER + timedelta(days=60)
    assert cron_in("0 0 3 * * *", "Europe/Berlin", "UTC", SUMMER, until) == "0 0 1 * * *"


def test_daylight_saving_time_is_refused_with_its_day():
    with pytest.raises(ClusterError, match="changes on 2026-03-30"):
        cron_in("0 0 3 * * *", "Europe/Berlin", "UTC", WINTER, None)


def test_zones_that_change_together_need_no_change():
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
