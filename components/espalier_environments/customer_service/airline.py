"""The tools of an airline's service: flights, reservations, baggage and certificates.

Each tool does the same as tau-bench's tool of that name (`tau_bench/envs/airline/tools` at 59a200c)
and leaves an equal database, oddities included: a booking takes no seats, a change of cabin is paid
but not recorded, and a reservation that is cancelled twice is refunded twice. Error texts are our
own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, JsonValue

from espalier.environments.tools import ToolError
from espalier_environments.customer_service.arguments import (
    Integer,
    StoredInteger,
    StoredNumber,
    StoredText,
    Text,
    chosen_from,
    list_of_objects,
    number_in,
    text_in,
)
from espalier_environments.customer_service.database import Record
from espalier_environments.customer_service.service_tools import ServiceTools

_BOOKED_AT = "2024-05-15T15:00:00"
"""The time that tau-bench's policy text gives as the current time."""
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_BAG_PRICE = 50
_INSURANCE_PRICE = 30
"""Dollars per passenger."""
_AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago",
    "DFW": "Dallas", "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami",
    "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando",
    "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip

_Object = dict[str, JsonValue]
_Flights = Annotated[
    list[_Object],
    list_of_objects(flight_number="as 'HAT001'", date="YYYY-MM-DD"),
    Field(description="all flights of the reservation, those that stay as they are included"),
]
_Passengers = Annotated[
    list[JsonValue],
    list_of_objects(first_name="first name", last_name="last name", dob="birthday, YYYY-MM-DD"),
]
_Payments = Annotated[
    list[_Object],
    list_of_objects(payment_id="as 'credit_card_7815826'", amount="dollars paid by it"),
]
_CABINS = chosen_from("basic_economy", "economy", "business")
_ReservationId = Annotated[Text, Field(description="as 'ZFA04Y'")]
_PaymentId = Annotated[Text, Field(description="of a gift card or credit card of the user")]
_Airport = Annotated[StoredText, Field(description="airport in three letters, as 'SFO'")]
_Date = Annotated[StoredText, Field(description="YYYY-MM-DD")]


class AirlineTools(ServiceTools):
    """Tools over one episode's copy of the database."""

    # ------------------------------------------------------------------------------ reading

    def get_user_details(self, user_id: Text) -> str:
        """Show a user: profile, membership, payment methods and reservations."""
        return json.dumps(self._found("users", user_id, "user"))

    def get_reservation_details(self, reservation_id: _ReservationId) -> str:
        """Show a reservation: flights, passengers, cabin, baggage and payments."""
        return json.dumps(self._found("reservations", reservation_id, "reservation"))

    def list_all_airports(self) -> str:
        """List the airports with their cities."""
        return json.dumps(_AIRPORTS)

    def search_direct_flight(self, origin: _Airport, destination: _Airport, date: _Date) -> str:
        """Search flights without a stop between two airports on a date."""
        found = [
            _on_date(flight, date)
            for _, flight in self._state.rows("flights")
            if flight["origin"] == origin
            and flight["destination"] == destination
            and _is_available(flight, date)
        ]
        return json.dumps(found)

    def search_onestop_flight(self, origin: _Airport, destination: _Airport, date: _Date) -> str:
        """Search pairs of flights with one stop between two airports on a date."""
        return json.dumps(list(self._connections(origin, destination, date)))

    def _connections(
        self, origin: JsonValue, destination: JsonValue, date: JsonValue
    ) -> Iterator[list[Record]]:
        flights = [flight for _, flight in self._state.rows("flights")]
        for first in flights:
            if first["origin"] != origin:
                continue
            for second in flights:
                if second["destination"] != destination or first["destination"] != second["origin"]:
                    continue
                second_date = _arrival_date(first, date)
                # times are compared as text, including the "+1" of the next day
                if first["scheduled_arrival_time_est"] > second["scheduled_departure_time_est"]:
                    continue
                if _is_available(first, date) and _is_available(second, second_date):
                    if date not in second["dates"]:
                        raise ToolError(f"a connecting flight has no data of {date}")
                    # the second flight has the data of the first date, as upstream
                    yield [
                        {**_on_date(first, date), "date": date},
                        {**_on_date(second, date), "date": second_date},
                    ]

    # ------------------------------------------------------------------------------ writing

    def book_reservation(  # noqa: PLR0913 (tau-bench's schema)
        self,
        user_id: Text,
        origin: StoredText,
        destination: StoredText,
        flight_type: Annotated[JsonValue, chosen_from("one_way", "round_trip")],
        cabin: Annotated[JsonValue, _CABINS],
        flights: _Flights,
        passengers: _Passengers,
        payment_methods: _Payments,
        total_baggages: StoredInteger,
        nonfree_baggages: Integer,
        insurance: Annotated[JsonValue, chosen_from("yes", "no")],
    ) -> str:
        """Book a reservation, after the user confirmed all of it with yes."""
        self._found("users", user_id, "user")
        booked = [self._priced(flight, cabin, len(passengers)) for flight in flights]
        price = sum(flight["price"] * len(passengers) for flight in booked)
        if insurance == "yes":
            price += _INSURANCE_PRICE * len(passengers)
        price += _BAG_PRICE * nonfree_baggages
        self._check_payments(user_id, payment_methods, price)

        user = self._state.edit("users", user_id)
        self._deduct(user, payment_methods)
        # there are three ids: a fourth reservation of an episode replaces the third
        free = (key for key in _NEW_RESERVATIONS if not self._state.find("reservations", key))
        reservation_id = next(free, _NEW_RESERVATIONS[-1])
        reservation: Record = {
            "reservation_id": reservation_id,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": flight_type,
            "cabin": cabin,
            "flights": booked,
            "passengers": copy.deepcopy(passengers),
            "payment_history": copy.deepcopy(payment_methods),
            "created_at": _BOOKED_AT,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        }
        self._state.put("reservations", reservation_id, reservation)
        user["reservations"].append(reservation_id)
        return json.dumps(reservation)

    def cancel_reservation(self, reservation_id: _ReservationId) -> str:
        """Cancel a whole reservation, after the user confirmed it with yes."""
        self._found("reservations", reservation_id, "reservation")
        reservation = self._state.edit("reservations", reservation_id)
        payments = reservation["payment_history"]
        payments += [
            {"payment_id": payment["payment_id"], "amount": -payment["amount"]}
            for payment in payments
        ]
        reservation["status"] = "cancelled"
        return json.dumps(reservation)

    def update_reservation_flights(
        self,
        reservation_id: _ReservationId,
        cabin: Annotated[JsonValue, _CABINS],
        flights: _Flights,
        payment_id: _PaymentId,
    ) -> str:
        """Change flights or cabin of a reservation, after the user confirmed it with yes."""
        reservation = self._found("reservations", reservation_id, "reservation")
        seats = len(reservation["passengers"])
        changed = [self._kept_or_priced(flight, cabin, reservation) for flight in flights]
        before = sum(flight["price"] for flight in reservation["flights"])
        price = sum(flight["price"] * seats for flight in changed) - before * seats
        self._check_method(reservation, payment_id, price)
        self._pay(reservation_id, payment_id, price)
        reservation = self._state.edit("reservations", reservation_id)
        reservation["flights"] = changed
        return json.dumps(reservation)

    def update_reservation_baggages(
        self,
        reservation_id: _ReservationId,
        total_baggages: StoredInteger,
        nonfree_baggages: Integer,
        payment_id: _PaymentId,
    ) -> str:
        """Change the numbers of bags of a reservation, after the user confirmed it with yes."""
        reservation = self._found("reservations", reservation_id, "reservation")
        price = _BAG_PRICE * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._check_method(reservation, payment_id, price)
        self._pay(reservation_id, payment_id, price)
        reservation = self._state.edit("reservations", reservation_id)
        reservation["total_baggages"] = total_baggages
        reservation["nonfree_baggages"] = nonfree_baggages
        return json.dumps(reservation)

    def update_reservation_passengers(
        self, reservation_id: _ReservationId, passengers: _Passengers
    ) -> str:
        """Change the passengers of a reservation, not their number, after the user's yes."""
        reservation = self._found("reservations", reservation_id, "reservation")
        if len(passengers) != len(reservation["passengers"]):
            raise ToolError(f"the reservation has {len(reservation['passengers'])} passengers")
        reservation = self._state.edit("reservations", reservation_id)
        reservation["passengers"] = copy.deepcopy(passengers)
        return json.dumps(reservation)

    def send_certificate(self, user_id: Text, amount: StoredNumber) -> str:
        """Give a user a certificate of that many dollars, where the rules allow it."""
        methods = self._found("users", user_id, "user")["payment_methods"]
        new = next((name for name in _NEW_CERTIFICATES if name not in methods), None)
        if new is None:
            raise ToolError("the user was sent as many certificates as can be sent")
        user = self._state.edit("users", user_id)
        user["payment_methods"][new] = {"source": "certificate", "amount": amount, "id": new}
        return f"{user_id} has the new certificate {new} of {amount} dollars"

    # ------------------------------------------------------------------------------ parts

    def _priced(self, flight: Record, cabin: JsonValue, seats: int) -> Record:
        """Return a flight to be booked, with price and airports.

        Raises:
            ToolError: the flight does not exist or is full.
        """
        number, date = text_in(flight, "flight_number"), text_in(flight, "date")
        found = self._found("flights", number, "flight")
        day = found["dates"].get(date)
        if day is None or day["status"] != "available":
            raise ToolError(f"flight {number} cannot be booked on {date}")
        if not isinstance(cabin, str) or cabin not in day["available_seats"]:
            raise ToolError(f"flight {number} has no cabin {cabin}")
        if day["available_seats"][cabin] < seats:
            raise ToolError(f"flight {number} has not enough seats on {date}")
        airports = {"origin": found["origin"], "destination": found["destination"]}
        return {**copy.deepcopy(flight), "price": day["prices"][cabin], **airports}

    def _kept_or_priced(self, flight: Record, cabin: JsonValue, reservation: Record) -> Record:
        """Return a flight of a changed reservation; if flight and cabin stay, so does the price."""
        key = (text_in(flight, "flight_number"), text_in(flight, "date"))
        for had in reservation["flights"] if cabin == reservation["cabin"] else ():
            if (had["flight_number"], had["date"]) == key:
                kept = {name: had[name] for name in ("price", "origin", "destination")}
                return {**copy.deepcopy(flight), **kept}
        return self._priced(flight, cabin, len(reservation["passengers"]))

    def _check_payments(self, user_id: str, payments: list[_Object], price: float) -> None:
        """Check that the payments are the user's, covered, and add up to the price."""
        methods = self._found("users", user_id, "user")["payment_methods"]
        for payment in payments:
            name, amount = text_in(payment, "payment_id"), number_in(payment, "amount")
            if name not in methods:
                raise ToolError(f"the user has no payment method {name}")
            limited = methods[name]["source"] in ("gift_card", "certificate")
            if limited and number_in(methods[name], "amount") < amount:
                raise ToolError(f"{name} does not cover {amount}")
        paid = sum(number_in(payment, "amount") for payment in payments)
        if paid != price:
            raise ToolError(f"the price is {price}, and the payments add up to {paid}")

    def _deduct(self, user: Record, payments: list[_Object]) -> None:
        """Deduct payments from gift cards, and use up whole certificates.

        Raises:
            ToolError: a certificate is given twice; it is used up nevertheless, as upstream.
        """
        methods = user["payment_methods"]
        for payment in payments:
            name = text_in(payment, "payment_id")
            if name not in methods:
                raise ToolError(f"{name} was used up by a payment before")
            if methods[name]["source"] == "gift_card":
                methods[name]["amount"] -= payment["amount"]
            elif methods[name]["source"] == "certificate":
                del methods[name]

    def _check_method(self, reservation: Record, payment_id: str, price: float) -> None:
        methods = self._found("users", reservation["user_id"], "user")["payment_methods"]
        if payment_id not in methods:
            raise ToolError(f"the user has no payment method {payment_id}")
        method = methods[payment_id]
        if method["source"] == "certificate":
            raise ToolError("a certificate pays no changes of a reservation")
        if method["source"] == "gift_card" and method["amount"] < price:
            raise ToolError("the balance of the gift card is too low")

    def _pay(self, reservation_id: str, payment_id: str, price: float) -> None:
        """Pay a difference, or refund a negative one; a difference of 0 is not recorded."""
        reservation = self._state.edit("reservations", reservation_id)
        method = self._state.edit("users", reservation["user_id"])["payment_methods"][payment_id]
        if method["source"] == "gift_card":
            method["amount"] -= price
        if price != 0:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})


def _is_available(flight: Record, date: JsonValue) -> bool:
    if isinstance(date, list | dict):
        raise ToolError("a date is text")
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _on_date(flight: Record, date: JsonValue) -> dict[str, Any]:
    """Return a flight with the data of only one day."""
    facts = {name: value for name, value in flight.items() if name != "dates"}
    return facts | flight["dates"][date]


def _arrival_date(flight: Record, date: JsonValue) -> JsonValue:
    """Return the date on which a flight of `date` arrives; all flights are in May 2024."""
    if "+1" not in flight["scheduled_arrival_time_est"]:
        return date
    try:
        return f"2024-05-{int(date[-2:] if isinstance(date, str) else '') + 1}"
    except ValueError as error:
        raise ToolError(f"{date} is no date; write YYYY-MM-DD") from error
