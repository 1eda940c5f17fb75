"""What all tests share: no network, one process-wide cache of slow things."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from rapid_core import RapidEngine
from rapid_core.retrieval.store import Store
from rapid_core.testing import tiny_engine

# Tiny models are all overhead: a second thread costs more than it brings.
torch.set_num_threads(1)

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
    """A tiny random pair behind the real engine, whose answers end at their limit; tests must not close it."""
    made = tiny_engine()
    made.target.model.generation_config.eos_token_id = -1
    return made


@pytest.fixture
def store():
    """A store for one index."""
    made = Store()
    yield made
    made.close()
