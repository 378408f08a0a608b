import json

import pytest

from tests.unit.environments.customer_service.tables import call, service

PASSENGER = {"first_name": "Bo", "last_name": "Ito", "dob": "1990-01-01"}
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
        {"payment_methods": [{"payment_id": "credit_card_4"}]},
        {"flights": [{"flight_number": "F1", "date": "2024-05-21"}]},
        {"flights": [{"flight_number": "F2", "date": "2024-05-20"}]},
        {"flights": [{"date": "2024-05-20"}]},
        {"cabin": "first"},
        {"cabin": ["economy"]},
        {"passengers": [PASSENGER] * 3},
        {"user_id": "nobody"},
        {"nonfree_baggages": "1"},
    ],
)
def test_refused_bookings_change_nothing(airline, wrong):
    assert not call(airline, "book_reservation", **{**BOOKING, **wrong}).succeeded
    assert airline.state.changes() == {}


def test_a_certificate_that_stands_twice_is_lost(airline):
    twice = [{"payment_id": "certificate_3", "amount": 90}] * 2
    assert not call(airline, "book_reservation", **{**BOOKING, "payment_methods": twice}).succeeded
    assert "certificate_3" not in airline.state.find("users", "bo_1")["payment_methods"]


def test_values_that_are_only_stored_are_not_checked(airline):
    odd = {"insurance": "maybe", "flight_type": 5, "nonfree_baggages": 0, "total_baggages": "2"}
    paid = [{"payment_id": "credit_card_4", "amount": 100}]
    assert call(
        airline, "book_reservation", **{**BOOKING, **odd, "payment_methods": paid}
    ).succeeded
    assert airline.state.find("reservations", "HATHAT")["flight_type"] == 5


def test_a_kept_flight_keeps_its_price(airline):
    same = {"cabin": "economy", "flights": BOOKING["flights"], "payment_id": "gift_card_2"}
    assert call(airline, "update_reservation_flights", reservation_id="R1", **same).succeeded
    assert airline.state.changes() == {}


def test_a_change_of_cabin_is_paid_and_not_written_down(airline):
    better = {"cabin": "business", "flights": BOOKING["flights"], "payment_id": "credit_card_4"}
    assert call(airline, "update_reservation_flights", reservation_id="R1", **better).succeeded
    changed = airline.state.find("reservations", "R1")
    assert changed["cabin"] == "economy"
    assert changed["payment_history"][-1] == {"payment_id": "credit_card_4", "amount": 220}


def test_a_reservation_cancelled_twice_is_refunded_twice(airline):
    for _ in range(2):
        assert call(airline, "cancel_reservation", reservation_id="R1").succeeded
    amounts = [
        paid["amount"] for paid in airline.state.find("reservations", "R1")["payment_history"]
    ]
    assert amounts == [80, -80, -80, 80]


def test_bags_are_paid_beyond_those_that_were(airline):
    bags = {"total_baggages": 3, "nonfree_baggages": 2, "payment_id": "gift_card_2"}
    assert call(airline, "update_reservation_baggages", reservation_id="R1", **bags).succeeded
    assert airline.state.find("users", "bo_1")["payment_methods"]["gift_card_2"]["amount"] == 50


def test_the_number_of_passengers_stays(airline):
    given = {"reservation_id": "R1", "passengers": [PASSENGER, PASSENGER]}
    assert not call(airline, "update_reservation_passengers", **given).succeeded


def test_three_certificates_can_be_sent(airline):
    sent = [call(airline, "send_certificate", user_id="bo_1", amount=50) for _ in range(4)]
    assert [one.succeeded for one in sent] == [True, True, True, False]


def test_only_available_flights_are_found(airline):
    route = {"origin": "SFO", "destination": "JFK"}
    found = json.loads(call(airline, "search_direct_flight", **route, date="2024-05-20").content)
    assert [one["flight_number"] for one in found] == ["F1"]
    assert call(airline, "search_direct_flight", **route, date="2024-05-21").content == "[]"
