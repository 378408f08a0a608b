"""TradingBot: an account, orders, a watch list and prices that do not move."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_NOW = datetime(2024, 9, 1, 10, 30)  # noqa: DTZ001 (the market's own clock, which stands still)
_DAY_S = 86_400
_QUOTES = {
    "AAPL": (227.16, 0.17, 2.552, 227.11, 227.09),
    "GOOG": (2840.34, 0.24, 1.123, 2835.67, 2842.15),
    "TSLA": (667.92, -0.12, 1.654, 671.15, 668.2),
    "MSFT": (310.23, 0.09, 3.234, 309.88, 310.11),
    "NVDA": (220.34, 0.34, 1.234, 220.45, 220.67),
    "ALPH": (1320.45, -0.08, 1.567, 1321.12, 1325.78),
    "OMEG": (457.23, 0.12, 2.345, 456.78, 458.12),
    "QUAS": (725.89, -0.03, 1.789, 726.45, 728.0),
    "NEPT": (88.34, 0.19, 0.654, 88.21, 88.67),
    "SYNX": (345.67, 0.11, 2.112, 345.34, 346.12),
    "ZETA": (22.09, -0.05, 0.789, 22.12, 22.34),
}
_QUOTE_KEYS = ("price", "percent_change", "volume", "MA(5)", "MA(20)")
"""Keys of `_QUOTES`, the default prices (DEFAULT_STATE of `trading_bot.py`)."""
_ORDERS = (
    (12345, "Buy", "AAPL", 210.65, 10, "Completed"),
    (12446, "Sell", "GOOG", 2840.56, 5, "Pending"),
)
_ORDER_KEYS = ("id", "order_type", "symbol", "price", "amount", "status")
"""Keys of `_ORDERS`, the default orders."""
_SYMBOLS = {
    "Apple": "AAPL", "Google": "GOOG", "Tesla": "TSLA", "Microsoft": "MSFT", "Nvidia": "NVDA",
    "Zeta Corp": "ZETA", "Alpha Tech": "ALPH", "Omega Industries": "OMEG", "Quasar Ltd.": "QUAS",
    "Neptune Systems": "NEPT", "Synex Solutions": "SYNX", "Amazon": "AMZN", "Gorilla": "GORI",
}  # fmt: skip
_SECTORS = {"Technology": ("AAPL", "GOOG", "MSFT", "NVDA"), "Automobile": ("TSLA", "F", "GM")}
_NOT_LOGGED_IN = {"error": "log in first"}


class TradingBot(Api):
    """BFCL's simulated trading service."""

    _FIELDS: ClassVar[Fields] = {
        "orders": (dict,), "account_info": (dict,), "market_status": (str,),
        "order_counter": (int,), "stocks": (dict,), "watch_list": (list,),
        "transaction_history": (list,), "random_seed": (int,),
    }  # fmt: skip

    def _begin(self, config: dict[str, Any]) -> None:
        orders: dict[Any, Any] = config.get(
            "orders", {row[0]: dict(zip(_ORDER_KEYS, row, strict=True)) for row in _ORDERS}
        )
        self.orders = {
            int(key) if isinstance(key, str) and key.isdecimal() else key: order
            for key, order in orders.items()
        }
        self.account_info: dict[str, Any] = config.get(
            "account_info",
            {"account_id": 12345, "balance": 10000.0, "binding_card": 1974202140965533},
        )
        self.authenticated: Any = config.get("authenticated", False)
        self.market_status: str = config.get("market_status", "Closed")
        self.order_counter: int = config.get("order_counter", 12446)
        self.stocks: dict[str, dict[str, Any]] = config.get(
            "stocks",
            {name: dict(zip(_QUOTE_KEYS, row, strict=True)) for name, row in _QUOTES.items()},
        )
        self.watch_list: list[str] = config.get("watch_list", ["NVDA"])
        self.transaction_history: list[dict[str, Any]] = config.get("transaction_history", [])
        self._random = random.Random(config.get("random_seed", 1053520))

    def get_current_time(self) -> Reply:
        """The market's time."""
        return {"current_time": _NOW.strftime("%I:%M %p")}

    def get_symbol_by_name(self, name: str) -> Reply:
        """Symbol of a company."""
        return {"symbol": _SYMBOLS.get(name, "no such company")}

    def get_stock_info(self, symbol: str) -> Reply:
        """Price and averages of a stock."""
        if symbol not in self.stocks:
            return {"error": f"no stock has the symbol {symbol}"}
        return self.stocks[symbol]

    def get_order_details(self, order_id: int) -> Reply:
        """One order."""
        if order_id not in self.orders:
            return {"error": f"no order has the id {order_id}; there are {[*self.orders]}"}
        return self.orders[order_id]

    def cancel_order(self, order_id: int) -> Reply:
        """Cancel an order that is not completed."""
        if order_id not in self.orders:
            return {"error": f"no order has the id {order_id}"}
        if self.orders[order_id]["status"] == "Completed":
            return {"error": f"order {order_id} is completed"}
        self.orders[order_id]["status"] = "Cancelled"
        return {"order_id": order_id, "status": "Cancelled"}

    def place_order(self, order_type: str, symbol: str, price: float, amount: int) -> Reply:
        """Place an order to buy or sell."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if symbol not in self.stocks:
            return {"error": f"no stock has the symbol {symbol}"}
        if price <= 0 or amount <= 0:
            return {"error": "price and amount: more than 0 are needed"}
        if order_type.lower() == "buy":
            cost = float(price) * int(amount)
            if cost > self.account_info.get("balance", 0):
                return {"error": f"{cost:.2f} are more than the balance"}
        order_id, price = self.order_counter, float(price)
        order = {"order_type": order_type, "price": price, "amount": amount}
        self.orders[order_id] = {"id": order_id, "symbol": symbol, **order, "status": "Open"}
        self.order_counter += 1
        # the reply says Pending although the stored order is Open
        return {
            "order_id": order_id,
            "order_type": order_type,
            "status": "Pending",
            "price": price,
            "amount": amount,
        }

    def withdraw_funds(self, amount: float) -> Reply:
        """Take money out of the account, while the market is open."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if self.market_status != "Open":
            return {"error": "the market is closed"}
        if amount <= 0:
            return {"error": "amount: more than 0 is needed"}
        if amount > self.account_info["balance"]:
            return {"error": "the balance is less"}
        return self._transferred("withdrawal", -amount, amount)

    def fund_account(self, amount: float) -> Reply:
        """Put money into the account."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if amount <= 0:
            return {"error": "amount: more than 0 is needed"}
        return self._transferred("deposit", amount, amount)

    def get_account_info(self) -> Reply:
        """The account."""
        return self.account_info if self.authenticated else _NOT_LOGGED_IN

    def trading_login(self, username: str, password: str) -> Reply:
        """Log in."""
        del username, password  # upstream checks neither
        if self.authenticated:
            return {"status": "logged in before"}
        self.authenticated = True
        return {"status": "logged in"}

    def trading_get_login_status(self) -> Reply:
        """Whether somebody is logged in."""
        return {"status": bool(self.authenticated)}

    def trading_logout(self) -> Reply:
        """Log out."""
        if not self.authenticated:
            return {"status": "nobody is logged in"}
        self.authenticated = False
        return {"status": "logged out"}

    def get_watchlist(self) -> Reply | list[str]:
        """Stocks that are watched."""
        if not self.authenticated:
            return ["error: log in first"]
        return {"watchlist": self.watch_list}

    def add_to_watchlist(self, stock: str) -> Reply:
        """Watch a stock."""
        if stock not in self.watch_list and stock in self.stocks:
            self.watch_list.append(stock)
        return {"watchlist": self.watch_list}

    def remove_stock_from_watchlist(self, symbol: str) -> Reply:
        """Watch a stock no longer."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if symbol not in self.watch_list:
            return {"error": f"{symbol} is not watched"}
        self.watch_list.remove(symbol)
        return {"status": f"{symbol} is not watched any more"}

    def get_order_history(self) -> Reply | list[Reply]:
        """Ids of all orders."""
        if not self.authenticated:
            return [_NOT_LOGGED_IN]
        return {"history": list(self.orders)}

    def get_transaction_history(
        self, start_date: str | None = None, end_date: str | None = None
    ) -> Reply | list[Reply]:
        """Deposits and withdrawals between two days."""
        if not self.authenticated:
            return [_NOT_LOGGED_IN]
        start = _date(start_date, "%Y-%m-%d") if start_date else datetime.min  # noqa: DTZ901 (of the market's own clock)
        end = _date(end_date, "%Y-%m-%d") if end_date else datetime.max  # noqa: DTZ901
        found = [
            one
            for one in self.transaction_history
            if start <= _date(one["timestamp"], "%Y-%m-%d %H:%M:%S") <= end
        ]
        return {"transaction_history": found}

    def get_available_stocks(self, sector: str) -> Reply:
        """Symbols of a sector."""
        return {"stock_list": list(_SECTORS.get(sector, ()))}

    def filter_stocks_by_price(
        self, stocks: list[str], min_price: float, max_price: float
    ) -> Reply:
        """Those of some stocks whose price is in a range."""
        prices = [(symbol, self.stocks.get(symbol, {}).get("price", 0)) for symbol in stocks]
        found = [symbol for symbol, price in prices if min_price <= price <= max_price]
        return {"filtered_stocks": found}

    def notify_price_change(self, stocks: list[str], threshold: float) -> Reply:
        """Those of some stocks whose price changed by `threshold` percent."""
        changed = [
            symbol
            for symbol in stocks
            if symbol in self.stocks and abs(self.stocks[symbol]["percent_change"]) >= threshold
        ]
        if not changed:
            return {"notification": "no price changed so much"}
        return {"notification": f"changed: {', '.join(changed)}"}

    def _transferred(self, kind: str, change: float, amount: float) -> Reply:
        self.account_info["balance"] += change
        moment = _NOW + timedelta(seconds=self._random.randint(0, _DAY_S))
        self.transaction_history.append(
            {"type": kind, "amount": amount, "timestamp": f"{moment:%Y-%m-%d %H:%M:%S}"}
        )
        return {"status": f"{kind} made", "new_balance": self.account_info["balance"]}


def _date(text: str, form: str) -> datetime:
    return datetime.strptime(text, form)  # noqa: DTZ007 (of the market's own clock)
