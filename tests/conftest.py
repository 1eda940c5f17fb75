"""What all tests share: no network, one process-wide cache of slow things."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from rapid_core import RapidEngine
from rapid_core.testing import tiny_engine

DOCUMENT = "\n\n".join(
    f"The {office} of {country} is number {number} in the register, and lives in {city}."
    for number, (office, country, city) in enumerate(
        (office, country, city)
        for office in ("king", "queen", "judge")
        for country, city in (("Spain", "Madrid"), ("Norway", "Oslo"), ("Peru", "Lima"), ("Japan", "東京"))
    )
)


@pytest.fixture(scope="session")
def document() -> str:
    """A small document of our own, about 900 bytes."""
    return DOCUMENT


@pytest.fixture(scope="session")
def engine() -> RapidEngine:
    """A tiny random pair behind the real engine; tests must not close it."""
    return tiny_engine()
