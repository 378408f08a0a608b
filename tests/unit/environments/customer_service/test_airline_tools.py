import json

import pytest

from tests.unit.environments.customer_service.tables import PASSENGER, call, service

BOOKING = {
    "user_id": "bo_1", "origin": "SFO", "destination": "JFK", "flight_type": "one_way",
    "cabin": "economy", "flights": [{"flight_number": "F1", "date": "2024-05-20"}],
    "passengers": [PASSENGER], "total_baggages": 1, "nonfree_baggages": 1, "insurance": "yes",
    "payment_methods": [
        {"payment_id": "certificate_3", "amount": 100}, {"payment_id": "gift_card_2", "amount": 80},
    ],
}  # fmt: skip


@pytest.fixture
def airline():
    return service("airline")


def test_a_booking_costs_fare_bags_and_insurance(airline):
    booked = json.loads(call(airline, "book_reservation", **BOOKING).content)
    assert booked["reservation_id"] == "HATHAT"
    user = airline.state.find("users", "bo_1")
    assert user["reservations"] == ["R1", "HATHAT"]
    assert user["payment_methods"]["gift_card_2"]["amount"] == 70
    assert "certificate_3" not in user["payment_methods"], "a certificate is used up whole"


@pytest.mark.parametrize(
    "wrong",
    [
        {"payment_methods": [{"payment_id": "credit_card_4", "amount": 179}]},
        {"payment_methods": [{"payment_id": "visa", "amount": 180}]},
        {"payment_methods": [{"payment_id": "gift_card_2", "amount": 180}]},
        {"flights": [{"flight_number": "F1", "date": "2024-05-21"}]},
        {"flights": [{"flight_number": "F2", "date": "2024-05-20"}]},
        {"cabin": "first"},
        {"passengers": [PASSENGER] * 3},
        {"user_id": "nobody"},
        {"nonfree_baggages": "1"},
    ],
)
def test_refused_bookings_change_nothing(airline, wrong):
    assert not call(airline, "book_reservation", **BOOKING | wrong).succeeded
    assert airline.state.changes() == {}


def test_a_kept_flight_is_free_and_another_cabin_paid(airline):
    def changed(cabin, method):
        given = {"cabin": cabin, "flights": BOOKING["flights"], "payment_id": method}
        assert call(airline, "update_reservation_flights", reservation_id="R1", **given).succeeded

    changed("economy", "gift_card_2")
    assert airline.state.changes() == {}
    changed("business", "credit_card_4")
    reservation = airline.state.find("reservations", "R1")
    assert reservation["cabin"] == "economy", "it is not written down"
    assert reservation["payment_history"][-1] == {"payment_id": "credit_card_4", "amount": 220}


def test_a_reservation_cancelled_twice_is_refunded_twice(airline):
    for _ in range(2):
        assert call(airline, "cancel_reservation", reservation_id="R1").succeeded
    history = airline.state.find("reservations", "R1")["payment_history"]
    assert [paid["amount"] for paid in history] == [80, -80, -80, 80]


def test_bags_certificates_and_passengers_follow_the_policy(airline):
    bags = {"total_baggages": 3, "nonfree_baggages": 2, "payment_id": "gift_card_2"}
    assert call(airline, "update_reservation_baggages", reservation_id="R1", **bags).succeeded
    assert airline.state.find("users", "bo_1")["payment_methods"]["gift_card_2"]["amount"] == 50
    twice = {"payment_methods": [{"payment_id": "certificate_3", "amount": 90}] * 2}
    assert not call(airline, "book_reservation", **BOOKING | twice).succeeded
    assert "certificate_3" not in airline.state.find("users", "bo_1")["payment_methods"]
    given = {"reservation_id": "R1", "passengers": [PASSENGER, PASSENGER]}
    assert not call(airline, "update_reservation_passengers", **given).succeeded
    sent = [call(airline, "send_certificate", user_id="bo_1", amount=50) for _ in range(4)]
    assert [one.succeeded for one in sent] == [True, True, True, False]
