"""TravelAPI: fares, bookings, insurance and credit cards, behind an access token."""

from __future__ import annotations

import random
from datetime import date, datetime
from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_TODAY = date(2024, 9, 1)
"""Reference date for the age of travellers; upstream uses the clock, on which no score should
depend."""
_ADULT_YEARS = 18
_FARES_TEXT = {
    "SFO": (
        "LAX 200 JFK 500 ORD 400 BOS 450 RMS 300 SBK 350 MPC 370 SVP 320 SHD 330 SSV 340 "
        "OKD 360 WLB 310 CRH 380 ATV 390 PHV 420 GFD 430 CIA 700"
    ),
    "LAX": (
        "SFO 100 JFK 600 ORD 500 BOS 550 RMS 310 SBK 320 MPC 330 SVP 340 SHD 350 SSV 360 "
        "OKD 370 WLB 380 CRH 390 ATV 400 PHV 410 GFD 420 HND 430"
    ),
    "JFK": (
        "ORD 300 BOS 250 RMS 450 SBK 460 MPC 470 SVP 480 SHD 490 SSV 500 OKD 510 WLB 520 "
        "CRH 530 ATV 540 PHV 550 GFD 560 LAX 570 HND 800 PVG 950 PEK 1000"
    ),
    "ORD": (
        "LAX 180 BOS 200 RMS 350 SBK 360 MPC 370 SVP 380 SHD 390 SSV 400 OKD 410 WLB 420 "
        "CRH 430 ATV 440 PHV 450 GFD 460"
    ),
    "BOS": (
        "RMS 400 SBK 410 MPC 420 SVP 430 SHD 440 SSV 450 OKD 460 WLB 470 CRH 480 ATV 490 "
        "PHV 500 GFD 510"
    ),
    "RMS": (
        "BOS 200 JFK 210 SBK 220 MPC 230 SVP 240 SHD 250 SSV 260 OKD 270 WLB 280 CRH 290 "
        "ATV 300 PHV 310 GFD 320 LAX 330"
    ),
    "SBK": "MPC 200 SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290",
    "MPC": "SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290",
    "SVP": "SHD 230 SSV 240 OKD 250 WLB 260 CRH 270 ATV 280 PHV 290 GFD 300",
    "SHD": "SSV 220 OKD 230 WLB 240 CRH 250 ATV 260 PHV 270 GFD 280",
    "SSV": "OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290",
    "OKD": "WLB 230 CRH 240 ATV 250 PHV 260 GFD 270 LAX 220",
    "WLB": "CRH 250 ATV 260 PHV 270 GFD 280",
    "CRH": "ATV 240 PHV 250 GFD 260 SFO 270 RMS 280 HKG 290 JFK 300",
    "ATV": "PHV 230 GFD 240",
    "PHV": "GFD 220",
    "LHR": "CDG 100",
}
"""From -> to and economy fare, in USD (`get_flight_cost` of `travel_booking.py`)."""
_FARES = {
    (start, end): int(fare)
    for start, text in _FARES_TEXT.items()
    for end, fare in zip(text.split()[::2], text.split()[1::2], strict=True)
}
_CLASSES = {"economy": 1, "business": 2, "first": 5}
_AIRPORTS = (
    "RMS", "SBK", "MPC", "SVP", "SHD", "CDG", "LHR", "SSV", "OKD", "WLB", "PEK", "HND", "HKG",
    "CIA", "CRH", "ATV", "PHV", "GFD", "SFO", "LAX", "JFK", "ORD", "BOS",
)  # fmt: skip
_CITIES = {
    "Rivermist": "RMS", "Stonebrook": "SBK", "Maplecrest": "MPC", "Silverpine": "SVP",
    "Shadowridge": "SHD", "London": "LHR", "Paris": "CDG", "Sunset Valley": "SSV",
    "Oakendale": "OKD", "Willowbend": "WLB", "Crescent Hollow": "CRH", "Autumnville": "ATV",
    "Pinehaven": "PHV", "Greenfield": "GFD", "San Francisco": "SFO", "Los Angeles": "LAX",
    "New York": "JFK", "Chicago": "ORD", "Boston": "BOS", "Beijing": "PEK", "Hong Kong": "HKG",
    "Rome": "CIA", "Tokyo": "HND",
}  # fmt: skip
_PER_DOLLAR = {
    "RMB": 7, "EUR": 0.8, "JPY": 110, "GBP": 0.7, "CAD": 1.3, "AUD": 1.4, "INR": 70, "RUB": 60,
    "BRL": 3.8, "MXN": 20,
}  # fmt: skip


class TravelAPI(Api):
    """BFCL's simulated travel service."""

    _FIELDS: ClassVar[Fields] = {
        "random_seed": (int,), "credit_card_list": (dict,), "booking_record": (dict,),
    }  # fmt: skip

    def _begin(self, config: dict[str, Any]) -> None:
        self._random = random.Random(config.get("random_seed", 141053))
        self.credit_card_list: dict[str, dict[str, Any]] = config.get("credit_card_list", {})
        self.booking_record: dict[Any, dict[str, Any]] = config.get("booking_record", {})
        self.access_token: Any = config.get("access_token")
        self.token_type: Any = config.get("token_type")
        self.token_expires_in: Any = config.get("token_expires_in")
        self.token_scope: Any = config.get("token_scope")
        self.user_first_name: Any = config.get("user_first_name")
        self.user_last_name: Any = config.get("user_last_name")
        self.budget_limit: Any = config.get("budget_limit")

    def authenticate_travel(
        self,
        client_id: str,
        client_secret: str,
        refresh_token: str,
        grant_type: str,
        user_first_name: str,
        user_last_name: str,
    ) -> Reply:
        """Log in, for an access token."""
        del client_id, client_secret, refresh_token  # upstream checks none
        self.token_expires_in = 2
        self.access_token = str(self._random.randint(100_000, 999_999))
        self.token_type = "Bearer"
        self.token_scope = grant_type
        self.user_first_name = user_first_name
        self.user_last_name = user_last_name
        return {
            "expires_in": 2,
            "access_token": self.access_token,
            "token_type": self.token_type,
            "scope": grant_type,
        }

    def travel_get_login_status(self) -> Reply:
        """Whether there is a token."""
        return {"status": self.token_expires_in is not None and self.token_expires_in != 0}

    def get_budget_fiscal_year(
        self,
        lastModifiedAfter: str | None = None,
        includeRemoved: str | None = None,
    ) -> Reply:
        """The fiscal year of the budget."""
        del lastModifiedAfter, includeRemoved  # there is only one year
        return {"budget_fiscal_year": "2018"}

    def register_credit_card(
        self,
        access_token: str,
        card_number: str,
        expiration_date: str,
        cardholder_name: str,
        card_verification_number: int,
    ) -> Reply:
        """Register a card, for its id."""
        if self.token_expires_in is None:
            return {"error": "authenticate first"}
        if fault := self._token_fault(access_token):
            return {"error": fault}
        if card_number in self.credit_card_list:
            return {"error": "the card is registered already"}
        card_id = str(self._random.randint(10**11, 10**12 - 1))
        self.credit_card_list[card_id] = {
            "card_number": card_number,
            "expiration_date": expiration_date,
            "cardholder_name": cardholder_name,
            "card_verification_number": card_verification_number,
            "balance": self._random.randint(10_000, 99_999),
        }
        return {"card_id": card_id}

    def get_flight_cost(
        self, travel_from: str, travel_to: str, travel_date: str, travel_class: str
    ) -> Reply:
        """Fare of a flight, USD."""
        return {"travel_cost_list": [_fare(travel_from, travel_to, travel_date, travel_class)]}

    def get_credit_card_balance(self, access_token: str, card_id: str) -> Reply:
        """Balance of a card, USD."""
        if fault := self._token_fault(access_token):
            return {"error": fault}
        if card_id not in self.credit_card_list:
            return {"error": f"no such card; there are {[*self.credit_card_list]}"}
        return {"card_balance": self.credit_card_list[card_id]["balance"]}

    def book_flight(
        self,
        access_token: str,
        card_id: str,
        travel_date: str,
        travel_from: str,
        travel_to: str,
        travel_class: str,
    ) -> Reply:
        """Book a flight, paid by a card."""
        fault = self._token_fault(access_token)
        if not fault and card_id not in self.credit_card_list:
            fault = "no such card"
        if not fault and "balance" not in self.credit_card_list[card_id]:
            fault = "the card has no balance"
        if not fault:
            fault = _flight_fault(travel_from, travel_to, travel_date, travel_class)
        if fault:
            return {"booking_status": False, "error": fault}
        cost = _fare(travel_from, travel_to, travel_date, travel_class)
        card = self.credit_card_list[card_id]
        if card["balance"] < cost:
            return {"booking_status": False, "error": "the balance is less than the fare"}
        if self.budget_limit is not None and card["balance"] < self.budget_limit:
            return {"booking_status": False, "error": "the balance is less than the budget limit"}
        card["balance"] -= cost
        booking_id = str(self._random.randint(1_000_000, 9_999_999))
        transaction_id = str(self._random.randint(10_000_000, 99_999_999))
        self.booking_record[booking_id] = {
            "card_id": card_id,
            "travel_date": travel_date,
            "travel_from": travel_from,
            "travel_to": travel_to,
            "travel_class": travel_class,
            "travel_cost": cost,
            "transaction_id": transaction_id,
        }
        return {
            "booking_id": booking_id,
            "transaction_id": transaction_id,
            "booking_status": True,
            "booking_history": {},
        }

    def retrieve_invoice(
        self, access_token: str, booking_id: str | None = None, insurance_id: str | None = None
    ) -> Reply:
        """Invoice of a booking."""
        del insurance_id  # invoices are only for bookings
        if fault := self._token_fault(access_token):
            return {"error": fault}
        if booking_id not in self.booking_record:
            return {"error": "no such booking"}
        booking = self.booking_record[booking_id]
        shown = ("travel_date", "travel_from", "travel_to", "travel_class", "travel_cost")
        parts = {key: booking[key] for key in (*shown, "transaction_id")}
        return {"invoice": {"booking_id": booking_id, **parts}}

    def get_booking_history(self, access_token: str) -> Reply:
        """All bookings."""
        if fault := self._token_fault(access_token):
            return {"error": fault}
        return {"booking_history": self.booking_record}

    def list_all_airports(self) -> list[str]:
        """Codes of all airports."""
        return list(_AIRPORTS)

    def cancel_booking(self, access_token: str, booking_id: str) -> Reply:
        """Cancel a booking; its fare is paid back."""
        fault = self._token_fault(access_token)
        if not fault and booking_id not in self.booking_record:
            fault = "no such booking"
        if fault:
            return {"cancel_status": False, "error": fault}
        booking = self.booking_record[booking_id]
        self.credit_card_list[booking["card_id"]]["balance"] += booking["travel_cost"]
        del self.booking_record[booking_id]
        return {"cancel_status": True}

    def compute_exchange_rate(
        self, base_currency: str, target_currency: str, value: float
    ) -> Reply:
        """Exchange an amount between a currency and USD."""
        if base_currency == "USD" and target_currency in _PER_DOLLAR:
            return {"exchanged_value": float(value * _PER_DOLLAR[target_currency])}
        if target_currency == "USD" and base_currency in _PER_DOLLAR:
            return {"exchanged_value": round(value / _PER_DOLLAR[base_currency], 2)}
        raise ValueError(f"no rate of {base_currency} in {target_currency}")

    def verify_traveler_information(
        self, first_name: str, last_name: str, date_of_birth: str, passport_number: str
    ) -> Reply:
        """Whether a traveller is who logged in, of age, and has a passport of the United States."""
        fault = ""
        if (self.user_first_name, self.user_last_name) != (first_name, last_name):
            fault = f"{first_name} {last_name} is not who authenticated"
        else:
            try:
                born = datetime.strptime(date_of_birth, "%Y-%m-%d").date()  # noqa: DTZ007 (a day)
            except ValueError:
                fault = "date_of_birth: needs YYYY-MM-DD"
            else:
                had_birthday = (_TODAY.month, _TODAY.day) >= (born.month, born.day)
                if _TODAY.year - born.year - (not had_birthday) < _ADULT_YEARS:
                    fault = f"the traveller is younger than {_ADULT_YEARS}"
                elif not passport_number.startswith("US"):
                    fault = "the passport is not of the United States"
        if fault:
            return {"verification_status": False, "verification_failure": fault}
        return {"verification_status": True}

    def set_budget_limit(self, access_token: str, budget_limit: float) -> Reply:
        """Limit what is spent, USD."""
        if fault := self._token_fault(access_token):
            return {"error": fault}
        self.budget_limit = float(budget_limit)
        return {"budget_limit": self.budget_limit}

    def get_nearest_airport_by_city(self, location: str) -> Reply:
        """Code of a city's airport."""
        return {"nearest_airport": _CITIES.get(location, "Unknown")}

    def purchase_insurance(
        self,
        access_token: str,
        insurance_type: str,
        booking_id: str,
        insurance_cost: float,
        card_id: str,
    ) -> Reply:
        """Insure a booking."""
        del insurance_type  # it changes nothing
        fault = self._token_fault(access_token)
        if not fault and self.budget_limit is not None and self.budget_limit < insurance_cost:
            fault = "it costs more than the budget limit"
        if not fault and booking_id not in self.booking_record:
            fault = "no such booking"
        if not fault and card_id not in self.credit_card_list:
            fault = "no such card"
        if fault:
            return {"insurance_status": False, "error": fault}
        self.credit_card_list[card_id]["balance"] -= insurance_cost
        return {
            "insurance_id": str(self._random.randint(10**8, 10**9 - 1)),
            "insurance_status": True,
        }

    def contact_customer_support(self, booking_id: str, message: str) -> Reply:
        """Write to support about a booking."""
        del message
        if booking_id not in self.booking_record:
            return {"error": "no such booking"}
        return {"customer_support_message": "your message was received; you will be answered soon"}

    def get_all_credit_cards(self) -> Reply:
        """All cards."""
        return {"credit_card_list": self.credit_card_list}

    def _token_fault(self, access_token: str) -> str:
        if self.token_expires_in == 0:
            return "the token has expired"
        return "" if access_token == self.access_token else "not the access token"


def _flight_fault(start: str, end: str, day: str, cabin: str) -> str:
    for airport in (start, end):
        if airport not in _AIRPORTS:
            return f"no airport has the code {airport}"
    try:
        datetime.strptime(day, "%Y-%m-%d")  # noqa: DTZ007 (a day)
    except ValueError:
        return "travel_date: needs YYYY-MM-DD"
    if cabin not in _CLASSES:
        return f"no class is called {cabin}; there are {', '.join(_CLASSES)}"
    return "" if (start, end) in _FARES else f"no flight from {start} to {end}"


def _fare(start: str, end: str, day: str, cabin: str) -> float:
    """Return the fare, which doubles on days whose digits have an even sum.

    Raises:
        ValueError: the flight or the class does not exist.
    """
    if (start, end) not in _FARES:
        raise ValueError(f"no flight from {start} to {end}")
    if cabin not in _CLASSES:
        raise ValueError(f"no class is called {cabin}")
    digits = sum(int(one) for one in day if one.isdigit())
    return float(_FARES[start, end] * _CLASSES[cabin] * (1 if digits % 2 else 2))
