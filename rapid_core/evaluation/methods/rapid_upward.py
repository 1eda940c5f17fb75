"""Upward speculation: RAPID with a drafter that is larger than the target."""

from __future__ import annotations

from rapid_core.evaluation.methods.rapid import Rapid


class RapidUpward(Rapid):
    """RAPID whose drafter is the one of `--upward-drafter`."""

    name = "rapid-upward"
    place = 6
    engine = "upward"


METHOD = RapidUpward()
