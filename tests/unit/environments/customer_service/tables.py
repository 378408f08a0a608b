"""Small tables of both domains."""

import copy

from espalier.environments.family import make_task
from espalier.records import ToolCall
from espalier_environments.customer_service.database import checked_database
from espalier_environments.customer_service.domains import service_of

ADDRESS = {
    "address1": "1 Mill Road", "address2": "", "city": "Salem", "state": "OR", "country": "USA",
    "zip": "97301",
}  # fmt: skip
VARIANTS = (("7", "red", 20.1), ("8", "blue", 25.4), ("9", "grey", 5.0))
RETAIL = {
    "users": {
        "ada_1": {
            "name": {"first_name": "Ada", "last_name": "Berg"},
            "address": ADDRESS, "email": "ada@example.com", "orders": ["#W1", "#W2"],
            "payment_methods": {
                "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 10.1},
                "paypal_1": {"source": "paypal", "id": "paypal_1"},
            },
        }
    },
    "products": {
        "50": {
            "name": "Lamp", "product_id": "50",
            "variants": {
                item_id: {"item_id": item_id, "options": {"color": color}, "price": price,
                          "available": item_id != "9"}
                for item_id, color, price in VARIANTS
            },
        }
    },
    "orders": {
        number: {
            "order_id": number, "user_id": "ada_1", "address": ADDRESS, "status": status,
            "items": [
                {"name": "Lamp", "product_id": "50", "item_id": "7", "price": 20.1,
                 "options": {"color": "red"}}
            ],
            "payment_history": [
                {"transaction_type": "payment", "amount": 20.1, "payment_method_id": method}
            ],
        }
        for number, status, method in (
            ("#W1", "pending", "gift_card_1"), ("#W2", "delivered", "paypal_1"),
        )
    },
}  # fmt: skip
PASSENGER = {"first_name": "Bo", "last_name": "Ito", "dob": "1990-01-01"}
AIRLINE = {
    "users": {
        "bo_1": {
            "payment_methods": {
                "gift_card_2": {"source": "gift_card", "id": "gift_card_2", "amount": 150},
                "certificate_3": {"source": "certificate", "id": "certificate_3", "amount": 100},
                "credit_card_4": {"source": "credit_card", "id": "credit_card_4"},
            },
            "reservations": ["R1"],
        }
    },
    "flights": {
        "F1": {
            "origin": "SFO", "destination": "JFK", "flight_number": "F1",
            "scheduled_departure_time_est": "06:00:00", "scheduled_arrival_time_est": "09:00:00",
            "dates": {
                "2024-05-20": {
                    "status": "available", "available_seats": {"economy": 2, "business": 1},
                    "prices": {"economy": 100, "business": 300},
                },
                "2024-05-21": {"status": "cancelled"},
            },
        }
    },
    "reservations": {
        "R1": {
            "reservation_id": "R1", "user_id": "bo_1", "cabin": "economy",
            "flights": [
                {"flight_number": "F1", "date": "2024-05-20", "origin": "SFO",
                 "destination": "JFK", "price": 80}
            ],
            "passengers": [PASSENGER],
            "payment_history": [{"payment_id": "credit_card_4", "amount": 80}],
            "nonfree_baggages": 0, "total_baggages": 1,
        }
    },
}  # fmt: skip
ARGUMENTS = {
    "address1": ("2 Oak Lane", ""), "address2": ("",), "city": ("Dover",), "state": ("DE",),
    "country": ("USA",), "zip": ("97301", "1"), "user_id": ("ada_1", "bo_1"),
    "first_name": ("Ada",), "last_name": ("Berg",), "email": ("ada@example.com",),
    "order_id": ("#W1", "#W2"), "product_id": ("50",), "reason": ("no longer needed",),
    "item_ids": (["7"], []), "new_item_ids": (["8"], ["7"], []),
    "payment_method_id": ("gift_card_1", "paypal_1"), "expression": ("(1 + 2) / 3", "2 ** 9"),
    "thought": ("so",), "summary": ("help",), "reservation_id": ("R1", "HATHAT"),
    "payment_id": ("gift_card_2", "credit_card_4", "certificate_3"), "origin": ("SFO",),
    "destination": ("JFK",), "date": ("2024-05-20",), "flight_type": ("one_way",),
    "cabin": ("economy", "business"), "amount": (50, 2.5), "total_baggages": (1, 2),
    "flights": ([{"flight_number": "F1", "date": "2024-05-20"}],),
    "passengers": ([PASSENGER],), "nonfree_baggages": (0, 1), "insurance": ("no", "yes"),
    "payment_methods": (
        [{"payment_id": "credit_card_4", "amount": 100}],
        [{"payment_id": "gift_card_2", "amount": 150}],
    ),
}  # fmt: skip
"""Argument -> values that are right in some call."""
TASK = make_task("customer_service", "hi", gold=("[]",), split="train", source="test", key="hi")


def service(domain):
    """Tools over small tables."""
    tables = copy.deepcopy({"retail": RETAIL, "airline": AIRLINE}[domain])
    return service_of(domain, checked_database(tables, domain, "tables"))


def call(used, name, **arguments):
    """The result of a call."""
    return used.tools[name].call(ToolCall(name=name, arguments=arguments), TASK)
