"""Killed, frozen, slowed down and lied to: what a pool of real sandboxes still has to keep."""
