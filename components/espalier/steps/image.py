"""The container image that every step runs in, unless `placement` says another."""

from espalier.config import ImagesConfig

IMAGE = ImagesConfig().cpu
