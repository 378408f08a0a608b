"""Errands: requests to one of the eight services, in words, and the calls that fulfil them.

    TradingBot    buy 12 of Tesla at 640.5    get_symbol_by_name({"name": "Tesla"})
                                              place_order({"symbol": "TSLA", ...})

An errand is drawn for a service in its current state, so that its calls succeed there. Most errands
name their values; some refer to the effect of an earlier turn ("the ticket opened last").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from espalier.records import ToolCall
from espalier_environments.function_calling.states import (
    Api,
    GorillaFileSystem,
    MathAPI,
    MessageAPI,
    TicketAPI,
    TradingBot,
    TravelAPI,
    TwitterAPI,
    VehicleControlAPI,
)
from espalier_environments.function_calling.word_lists import CITIES, COLORS, NOUNS, PEOPLE


class Errand(NamedTuple):
    """A user's turn, and its gold calls."""

    words: str
    calls: tuple[ToolCall, ...]
    names_values: bool = True
    """Whether the words name the values of the calls. Words that refer to an earlier turn do not,
    and the same words then occur in many conversations."""


Draw = Callable[[random.Random, Any], Errand | None]
"""Draws an errand for a service in its present state; None if that state allows none."""


class Scene(NamedTuple):
    """A service's initial state, and the errands for it."""

    begin: Callable[[random.Random], dict[str, Any]]
    errands: tuple[Draw, ...]


def _call(tool: str, /, **arguments: Any) -> ToolCall:  # noqa: ANN401 (any JSON)
    return ToolCall(name=tool, arguments=arguments)


def _text(dice: random.Random) -> str:
    return f"the {dice.choice(NOUNS)} is {dice.choice(COLORS)}"


def _amount(dice: random.Random) -> int:
    return dice.randint(2, 999)


def _price(dice: random.Random) -> float:
    return dice.randint(10, 900) + 0.5


# ------------------------------------------------------------------------------------- files


def _files_begin(dice: random.Random) -> dict[str, Any]:
    folder, *files = dice.sample(NOUNS, 4)
    contents: dict[str, Any] = {folder: {"type": "directory", "contents": {}}}
    for name in files:
        contents[f"{name}.txt"] = {"type": "file", "content": f"{_text(dice)}\n{_text(dice)}\n"}
    return {"root": {"work": {"type": "directory", "contents": contents}}}


def _entries(api: GorillaFileSystem, kind: type) -> list[str]:
    found = cast("Mapping[str, object]", api.snapshot()["root"]["contents"])
    return [name for name, entry in found.items() if isinstance(entry, kind)]


def _make_folder(dice: random.Random, api: GorillaFileSystem) -> Errand | None:
    name = dice.choice([one for one in NOUNS if one not in _entries(api, dict)])
    return Errand(f"make a folder named {name}", (_call("mkdir", dir_name=name),))


def _write_file(dice: random.Random, api: GorillaFileSystem) -> Errand | None:
    name, text = f"{dice.choice(NOUNS)}.txt", _text(dice)
    if name in _entries(api, str):
        return None
    words = f"write '{text}' into a new file {name}"
    return Errand(
        words, (_call("touch", file_name=name), _call("echo", content=text, file_name=name))
    )


def _move_file(dice: random.Random, api: GorillaFileSystem) -> Errand | None:
    files, folders = _entries(api, str), _entries(api, dict)
    if not files or not folders:
        return None
    name, folder = dice.choice(files), dice.choice(folders)
    if name in api.snapshot()["root"]["contents"][folder]["contents"]:
        return None
    tool, said = dice.choice((("mv", "move"), ("cp", "copy")))
    words = f"{said} the file {name} into the folder {folder}"
    return Errand(words, (_call(tool, source=name, destination=folder),))


def _count_words(dice: random.Random, api: GorillaFileSystem) -> Errand | None:
    files = _entries(api, str)
    if not files:
        return None
    name, (mode, said) = dice.choice(files), dice.choice((("w", "words"), ("c", "characters")))
    return Errand(f"how many {said} has {name} ?", (_call("wc", file_name=name, mode=mode),))


# ------------------------------------------------------------------------------------- numbers


def _no_config(_dice: random.Random) -> dict[str, Any]:
    return {}


def _two_numbers(dice: random.Random, _api: MathAPI) -> Errand:
    tool, words = dice.choice(
        (
            ("add", "add {b} to {a}"),
            ("subtract", "take {b} from {a}"),
            ("multiply", "multiply {a} by {b}"),
            ("divide", "divide {a} by {b}"),
        )
    )
    a, b = _amount(dice), _amount(dice)
    return Errand(words.format(a=a, b=b), (_call(tool, a=a, b=b),))


def _of_numbers(dice: random.Random, api: MathAPI) -> Errand:
    """Ask for a number computed from a list, multiplied by another."""
    numbers = [_amount(dice) for _ in range(3)]
    tool, said = dice.choice(
        (("mean", "mean"), ("max_value", "largest"), ("min_value", "least"), ("sum_values", "sum"))
    )
    found = getattr(api, tool)(numbers)["result"]
    factor = dice.randint(2, 9)
    words = f"multiply the {said} of {' , '.join(map(str, numbers))} by {factor}"
    calls = (_call(tool, numbers=numbers), _call("multiply", a=found, b=factor))
    return Errand(words, calls)


# ------------------------------------------------------------------------------------- messages


def _messages_begin(dice: random.Random) -> dict[str, Any]:
    people = dice.sample(PEOPLE, 4)
    ids = {name: f"USR{number:03d}" for number, name in enumerate(people, start=1)}
    inbox = [{ids[people[1]]: _text(dice)}]
    return {
        "user_map": dict(ids),
        "user_count": 4,
        "current_user": ids[people[0]],
        "inbox": inbox,
        "message_count": 1,
    }


def _send_message(dice: random.Random, api: MessageAPI) -> Errand:
    name, text = dice.choice(list(api.user_map)), _text(dice)
    calls = (
        _call("get_user_id", user=name),
        _call("send_message", receiver_id=api.user_map[name], message=text),
    )
    return Errand(f"send {name} the message '{text}'", calls)


def _add_contact(dice: random.Random, api: MessageAPI) -> Errand:
    name = dice.choice([one for one in PEOPLE if one not in api.user_map])
    return Errand(f"add {name} to my contacts", (_call("add_contact", user_name=name),))


def _delete_message(_dice: random.Random, api: MessageAPI) -> Errand | None:
    if not api.inbox:
        return None
    (receiver,) = api.inbox[-1]
    name = next(one for one, user_id in api.user_map.items() if user_id == receiver)
    calls = (_call("get_user_id", user=name), _call("delete_message", receiver_id=receiver))
    return Errand(f"delete my last message to {name}", calls)


def _search_messages(dice: random.Random, _api: MessageAPI) -> Errand:
    word = f"{dice.choice(NOUNS)} is {dice.choice(COLORS)}"
    return Errand(f"which messages say '{word}' ?", (_call("search_messages", keyword=word),))


# ------------------------------------------------------------------------------------- tickets


def _tickets_begin(dice: random.Random) -> dict[str, Any]:
    user, counter = dice.choice(PEOPLE), dice.randint(100, 900)
    tickets = [
        {"id": counter + place, "title": f"{dice.choice(COLORS)} {dice.choice(NOUNS)}",
         "description": "", "status": "Open", "priority": 2, "created_by": user}
        for place in range(2)
    ]  # fmt: skip
    return {"ticket_queue": tickets, "ticket_counter": counter + 2, "current_user": user}


def _open_ticket(dice: random.Random, _api: TicketAPI) -> Errand:
    title, priority = f"{dice.choice(COLORS)} {dice.choice(NOUNS)}", dice.randint(1, 5)
    call = _call("create_ticket", title=title, priority=priority)
    return Errand(f"open a ticket '{title}' of priority {priority}", (call,))


def _resolve_ticket(dice: random.Random, api: TicketAPI) -> Errand | None:
    ticket, text = dice.choice(api.ticket_queue), _text(dice)
    if ticket["status"] != "Open":
        return None
    call = _call("resolve_ticket", ticket_id=ticket["id"], resolution=text)
    return Errand(f"resolve ticket {ticket['id']} with '{text}'", (call,))


def _edit_ticket(dice: random.Random, api: TicketAPI) -> Errand:
    ticket, priority = dice.choice(api.ticket_queue), dice.choice((1, 3, 4, 5))
    call = _call("edit_ticket", ticket_id=ticket["id"], updates={"priority": priority})
    return Errand(f"set the priority of ticket {ticket['id']} to {priority}", (call,))


def _close_last_ticket(_dice: random.Random, api: TicketAPI) -> Errand | None:
    ticket = api.ticket_queue[-1]
    if ticket["status"] != "Open" or len(api.ticket_queue) < _TICKETS_WITH_OWN:
        return None
    call = _call("close_ticket", ticket_id=ticket["id"])
    return Errand("close the ticket that you just opened", (call,), names_values=False)


_TICKETS_WITH_OWN = 3
"""Two tickets exist at the beginning; the third is the conversation's own."""


# ------------------------------------------------------------------------------------- trading


_COMPANIES = ("Apple", "Google", "Tesla", "Microsoft", "Nvidia", "Zeta Corp", "Alpha Tech")


def _trading_begin(dice: random.Random) -> dict[str, Any]:
    account = {"account_id": _amount(dice), "balance": 2e6, "binding_card": _amount(dice)}
    return {
        "authenticated": True,
        "market_status": "Open",
        "orders": {},
        "order_counter": dice.randint(1000, 9000),
        "account_info": account,
        "watch_list": [],
    }


def _place_order(dice: random.Random, api: TradingBot) -> Errand:
    company, price, amount = dice.choice(_COMPANIES), _price(dice), _amount(dice)
    kind, said = dice.choice((("Buy", "buy"), ("Sell", "sell")))
    symbol = api.get_symbol_by_name(company)["symbol"]
    calls = (
        _call("get_symbol_by_name", name=company),
        _call("place_order", order_type=kind, symbol=symbol, price=price, amount=amount),
    )
    return Errand(f"{said} {amount} of {company} at {price}", calls)


def _watch(dice: random.Random, api: TradingBot) -> Errand | None:
    company = dice.choice(_COMPANIES)
    symbol = api.get_symbol_by_name(company)["symbol"]
    if symbol in api.watch_list:
        return None
    calls = (
        _call("get_symbol_by_name", name=company),
        _call("add_to_watchlist", stock=symbol),
    )
    return Errand(f"watch the stock of {company}", calls)


def _transfer(dice: random.Random, _api: TradingBot) -> Errand:
    amount = _price(dice)
    tool, said = dice.choice((("fund_account", "into"), ("withdraw_funds", "out of")))
    return Errand(f"move {amount} dollars {said} my account", (_call(tool, amount=amount),))


def _cancel_order(_dice: random.Random, api: TradingBot) -> Errand | None:
    open_orders = [number for number, one in api.orders.items() if one["status"] == "Open"]
    if not open_orders:
        return None
    call = _call("cancel_order", order_id=open_orders[-1])
    return Errand("cancel the order that you placed last", (call,), names_values=False)


# ------------------------------------------------------------------------------------- travel


_ROUTES = (
    ("SFO", "LAX"), ("SFO", "JFK"), ("LAX", "ORD"), ("LAX", "HND"), ("JFK", "BOS"), ("ORD", "BOS"),
    ("JFK", "PEK"), ("CRH", "HKG"), ("SFO", "CIA"), ("RMS", "LAX"),
)  # fmt: skip


def _travel_begin(dice: random.Random) -> dict[str, Any]:
    card = str(dice.randint(1000, 9999))
    return {
        "access_token": str(dice.randint(100_000, 999_999)),
        "token_type": "Bearer",
        "token_expires_in": 2,
        "token_scope": "read_write",
        "credit_card_list": {card: {"balance": 50_000}},
        "random_seed": dice.randint(1, 10**6),
    }


def _book_flight(dice: random.Random, api: TravelAPI) -> Errand:
    (card,) = api.credit_card_list
    start, end = dice.choice(_ROUTES)
    day = f"2025-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d}"
    fare = dice.choice(("economy", "business"))
    words = (
        f"with token {api.access_token} and card {card} book {fare} from {start} to {end} on {day}"
    )
    call = _call(
        "book_flight", access_token=api.access_token, card_id=card, travel_date=day,
        travel_from=start, travel_to=end, travel_class=fare,
    )  # fmt: skip
    return Errand(words, (call,))


def _limit_budget(dice: random.Random, api: TravelAPI) -> Errand:
    limit = dice.randint(10, 99) * 100
    call = _call("set_budget_limit", access_token=api.access_token, budget_limit=limit)
    return Errand(f"with token {api.access_token} set my budget to {limit} dollars", (call,))


def _exchange(dice: random.Random, _api: TravelAPI) -> Errand:
    value, currency = _amount(dice), dice.choice(("EUR", "GBP", "JPY", "CAD", "INR"))
    call = _call(
        "compute_exchange_rate", base_currency="USD", target_currency=currency, value=value
    )
    return Errand(f"what are {value} dollars in {currency} ?", (call,))


def _cancel_booking(_dice: random.Random, api: TravelAPI) -> Errand | None:
    if not api.booking_record:
        return None
    booking = list(api.booking_record)[-1]
    call = _call("cancel_booking", access_token=api.access_token, booking_id=booking)
    return Errand("cancel the flight that you booked last", (call,), names_values=False)


# ------------------------------------------------------------------------------------- posting


def _posting_begin(dice: random.Random) -> dict[str, Any]:
    user, *followed = dice.sample(PEOPLE, 3)
    return {
        "username": user,
        "authenticated": True,
        "tweet_counter": dice.randint(100, 900),
        "following_list": followed,
    }


def _post(dice: random.Random, _api: TwitterAPI) -> Errand:
    text, tag = _text(dice), f"#{dice.choice(NOUNS)}"
    words, arguments = f"post '{text}'", {"content": text}
    if dice.random() < 0.5:
        return Errand(
            f"{words} with the tag {tag}", (_call("post_tweet", **arguments, tags=[tag]),)
        )
    return Errand(words, (_call("post_tweet", **arguments),))


def _follow(dice: random.Random, api: TwitterAPI) -> Errand:
    name = dice.choice(PEOPLE)
    if name in api.following_list:
        return Errand(f"unfollow {name}", (_call("unfollow_user", username_to_unfollow=name),))
    return Errand(f"follow {name}", (_call("follow_user", username_to_follow=name),))


def _comment(dice: random.Random, api: TwitterAPI) -> Errand | None:
    if not api.tweets:
        return None
    text = _text(dice)
    call = _call("comment", tweet_id=max(api.tweets), comment_content=text)
    return Errand(f"comment '{text}' on that post", (call,))


def _repost(_dice: random.Random, api: TwitterAPI) -> Errand | None:
    if not api.tweets or api.retweets:
        return None
    call = _call("retweet", tweet_id=max(api.tweets))
    return Errand("repost that post", (call,), names_values=False)


# ------------------------------------------------------------------------------------- vehicle


_DOORS = ("driver", "passenger", "rear_left", "rear_right")


def _vehicle_begin(dice: random.Random) -> dict[str, Any]:
    return {"fuelLevel": float(dice.randint(2, 20))}


def _fill(dice: random.Random, _api: VehicleControlAPI) -> Errand:
    gallons = dice.randint(1, 9) + dice.choice((0.0, 0.25, 0.5, 0.75))
    return Errand(f"fill in {gallons} gallons", (_call("fillFuelTank", fuelAmount=gallons),))


def _climate(dice: random.Random, _api: VehicleControlAPI) -> Errand:
    degrees, fan = dice.randint(16, 28), dice.randint(1, 100)
    call = _call("adjustClimateControl", temperature=degrees, fanSpeed=fan)
    return Errand(f"set {degrees} degrees celsius and the fan to {fan}", (call,))


def _drive(dice: random.Random, api: VehicleControlAPI) -> Errand:
    """Drive to a city; the engine starts only with locked doors and a pressed pedal."""
    city = dice.choice(CITIES)
    go = _call("set_navigation", destination=city)
    if api.engine_state == "running":
        return Errand(f"go on to {city}", (go,))
    calls = (
        _call("lockDoors", unlock=False, door=list(_DOORS)),
        _call("pressBrakePedal", pedalPosition=1),
        _call("startEngine", ignitionMode="START"),
        go,
    )
    return Errand(f"lock all doors , start the engine and drive to {city}", calls)


def _lights(dice: random.Random, _api: VehicleControlAPI) -> Errand:
    mode, city = dice.choice(("on", "off")), dice.choice(CITIES)
    calls = (_call("setHeadlights", mode=mode), _call("set_navigation", destination=city))
    return Errand(f"switch the headlights {mode} and navigate to {city}", calls)


SCENES: Mapping[str, Scene] = {
    "GorillaFileSystem": Scene(_files_begin, (_make_folder, _write_file, _move_file, _count_words)),
    "MathAPI": Scene(_no_config, (_two_numbers, _of_numbers)),
    "MessageAPI": Scene(
        _messages_begin, (_send_message, _add_contact, _delete_message, _search_messages)
    ),
    "TicketAPI": Scene(
        _tickets_begin, (_open_ticket, _resolve_ticket, _edit_ticket, _close_last_ticket)
    ),
    "TradingBot": Scene(_trading_begin, (_place_order, _watch, _transfer, _cancel_order)),
    "TravelAPI": Scene(_travel_begin, (_book_flight, _limit_budget, _exchange, _cancel_booking)),
    "TwitterAPI": Scene(_posting_begin, (_post, _follow, _comment, _repost)),
    "VehicleControlAPI": Scene(_vehicle_begin, (_fill, _climate, _drive, _lights)),
}
"""Service -> its scene."""


def drawn_errand(dice: random.Random, service: str, api: Api) -> Errand | None:
    """Draw an errand for a service; None if its state does not allow the drawn kind."""
    errands: Sequence[Draw] = SCENES[service].errands
    return dice.choice(errands)(dice, api)
