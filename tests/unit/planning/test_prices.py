import pytest

from espalier.planning.prices import PriceTable, read_prices
from espalier.records import ProfileError


def test_money_is_hours_by_what_is_used():
    table = PriceTable(gpu_hour=2.0, cpu_core_hour=0.5, memory_gib_hour=0.1, machine_hour=1.0)
    cost = table.cost(hours=3.0, gpu_hours=4.0, cores=2, memory_mib=2048)
    assert cost == pytest.approx(3 * (2 * 0.5 + 2 * 0.1 + 1.0) + 4 * 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu_hour = -1", "gpu_hour"),
        ("gpu_hours = 1", "gpu_hours"),
        ("gpu_hour =", "not TOML"),
        ("", "no price is above 0"),
    ],
)
def test_a_faulty_table_names_file_and_key(tmp_path, text, message):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as raised:
        read_prices(path)
    assert str(path) in str(raised.value)
