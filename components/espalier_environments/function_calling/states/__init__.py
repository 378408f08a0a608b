"""The eight services that BFCL's conversations use, one module each."""

from espalier_environments.function_calling.states.api import (
    Api,
    document_of,
    parameter_names,
    play,
    tool_names,
)
from espalier_environments.function_calling.states.files import GorillaFileSystem
from espalier_environments.function_calling.states.mathematics import MathAPI
from espalier_environments.function_calling.states.messages import MessageAPI
from espalier_environments.function_calling.states.posting import TwitterAPI
from espalier_environments.function_calling.states.tickets import TicketAPI
from espalier_environments.function_calling.states.trading import TradingBot
from espalier_environments.function_calling.states.travel import TravelAPI
from espalier_environments.function_calling.states.vehicle import VehicleControlAPI

APIS = {
    "GorillaFileSystem": GorillaFileSystem,
    "MathAPI": MathAPI,
    "MessageAPI": MessageAPI,
    "TicketAPI": TicketAPI,
    "TradingBot": TradingBot,
    "TravelAPI": TravelAPI,
    "TwitterAPI": TwitterAPI,
    "VehicleControlAPI": VehicleControlAPI,
}
"""Name in a task -> the service."""
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "TwitterAPI": "posting_api.json",
    "VehicleControlAPI": "vehicle_control.json",
}
"""Name in a task -> the file in `multi_turn_func_doc` that describes its tools."""

__all__ = [
    "APIS",
    "DOCUMENTS",
    "Api",
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "TwitterAPI",
    "VehicleControlAPI",
    "document_of",
    "parameter_names",
    "play",
    "tool_names",
]
