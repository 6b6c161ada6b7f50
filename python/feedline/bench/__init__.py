"""Data sets, loaders and training steps of a program, for the commands that measure them.

The native module calls what is listed here; nothing of it is for programs.
"""

from feedline.bench.feed import Feed, look, open_feed
from feedline.bench.target import describe

__all__ = ["Feed", "describe", "look", "open_feed"]
