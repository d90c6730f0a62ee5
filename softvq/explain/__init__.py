"""What prototypes say: shares in an input, nearest tokens in a data set, pages that show both.

`softvq.explain.page` needs the extra ``explain``; nothing else here does.
"""

from softvq.explain.neighbours import Neighbour, PrototypeNeighbours
from softvq.explain.shares import Shares, explain_shares

__all__ = ["Neighbour", "PrototypeNeighbours", "Shares", "explain_shares"]
