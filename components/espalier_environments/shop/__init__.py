"""Shopping by search and clicks, as in WebShop."""

from espalier_environments.shop.config import ShopConfig
from espalier_environments.shop.family import Shop

__all__ = ["Shop", "ShopConfig"]
