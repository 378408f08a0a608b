from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster.schedules import checked_cron
from espalier.records import ClusterError


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
        "0 0 0 * * * 2026",
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
