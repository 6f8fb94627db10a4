"""A live view of stores while they are written: a local web page, or a terminal.

`serve` is behind ``normscope watch``. `Board` reads stores and holds what the views show.
"""

from normscope.watch.board import Board
from normscope.watch.server import serve

__all__ = ["Board", "serve"]
