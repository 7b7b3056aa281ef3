# SPDX-License-Identifier: Apache-2.0
"""The regions that are open."""

from __future__ import annotations

import threading
from typing import Any

from comp._comp import Regions


class OpenRegions(threading.local):
    """The regions that each thread is in, innermost last."""

    def __init__(self) -> None:
        self.regions: list[Any] = []  # of _region.Region, which imports this module
        self.repeats: list[bool] = []  # of each, whether it is the one around it, entered again
        self.again = 0  # how many parts of regions it runs again, in the backward
        self.checkpoints = 0  # how many such parts it is in, in the forward

    def innermost(self) -> Regions | None:
        regions: Regions | None = self.regions[-1]._regions if self.regions else None
        return regions


open_regions = OpenRegions()
