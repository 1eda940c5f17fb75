"""Clocks, memory bandwidth and peak memory of the machine, on a CPU and on CUDA."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from rapid_core.extras import require

# Larger than the caches of the processor, and on a GPU long enough to hide the launch.
PROBE_BYTES = {"cpu": 256 * 2**20, "cuda": 2 * 2**30}
PROBE_REPEATS = 7
SAMPLING_S = 0.005


def now(*devices: torch.device) -> float:
    """Seconds on the wall clock, once the devices have done all that was queued."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()


def bandwidth(device: torch.device) -> float:
    """Memory bandwidth in bytes a second: the better of a matrix-vector product and a copy, each a median.

    The product reads a matrix once, as decoding does; the copy reads and writes.
    """
    side = int((PROBE_BYTES.get(device.type, PROBE_BYTES["cpu"]) / 4) ** 0.5)
    matrix, vector = torch.ones(side, side, device=device), torch.ones(side, device=device)
    copy = torch.empty_like(matrix)
    moves: dict[str, tuple[Callable[[], object], int]] = {
        "read": (lambda: torch.mv(matrix, vector), matrix.nbytes),
        "copy": (lambda: copy.copy_(matrix), 2 * matrix.nbytes),
    }
    rates: dict[str, list[float]] = {name: [] for name in moves}
    # The first of each is a warm-up.
    for _ in range(PROBE_REPEATS + 1):
        for name, (move, moved) in moves.items():
            started = now(device)
            move()
            rates[name].append(moved / (now(device) - started))
    return max(median(values[1:]) for values in rates.values())


@dataclass(slots=True)
class Peak:
    """The most memory in use inside a block, beyond what was in use before it, in bytes."""

    bytes: int = 0


@contextmanager
def peak_memory(*devices: torch.device) -> Iterator[Peak]:
    """Measure the peak inside the block, over all the devices.

    On CUDA it is what torch allocated. On a CPU it is the resident memory of the process, read
    every few milliseconds: all that Python, torch and the encoder touch is in it, and a peak
    shorter than that may be missed.
    """
    peak = Peak()
    gpus = {device for device in devices if device.type == "cuda"}
    gc.collect()
    before = {}
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
        before[gpu] = torch.cuda.memory_allocated(gpu)
    if gpus == set(devices):
        yield peak
    else:
        with _resident() as resident:
            yield peak
        peak.bytes += resident.bytes
    peak.bytes += sum(torch.cuda.max_memory_allocated(gpu) - before[gpu] for gpu in gpus)


@contextmanager
def _resident() -> Iterator[Peak]:
    process = require("psutil", extra="bench").Process()
    # Freed memory that the allocator keeps would hide as much of the peak.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
    before, peak, done = process.memory_info().rss, Peak(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak.bytes = max(peak.bytes, process.memory_info().rss - before)
            done.wait(SAMPLING_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def device_name(device: torch.device) -> str:
    """What the device is called by its maker."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    listed = Path("/proc/cpuinfo")
    if device.type == "cpu" and listed.is_file():
        for line in listed.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
