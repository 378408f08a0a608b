"""Shopping by search and clicks, as in WebShop."""

from espalier.environments.shop.config import ShopConfig
from espalier.environments.shop.family import Shop

__all__ = ["Shop", "ShopConfig"]
