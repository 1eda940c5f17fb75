"""What an answer cost, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rapid_core import Stats, Usage


def statistics(stats: Stats, usage: Usage, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Our statistics as plain data; of retrieved passages only their places and scores."""
    plain = dataclasses.asdict(stats)
    plain["retrieved"] = [
        {
            "start": chunk.start,
            "end": chunk.end,
            # Chunks of the caller have none, and NaN is no JSON.
            "score": None if math.isnan(chunk.score) else chunk.score,
            "characters": len(chunk.text),
        }
        for chunk in stats.retrieved
    ]
    plain["notes"] = [*stats.notes, *notes]
    plain["left_out"] = list(stats.left_out)
    return {**plain, "acceptance_rate": stats.acceptance_rate, "cached_tokens": usage.cached_tokens}
