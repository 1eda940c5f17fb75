"""Memory: what there is on a device, and errors that name it beside what was needed."""

from __future__ import annotations

import ctypes
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rapid_core.errors import NotEnoughMemoryError, RapidError

GIB = 2**30
MORE_ROOM = "choose a quantization, dtype='bfloat16', another device or a smaller model, or free memory there"
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Where a version of cgroups keeps its folders, the limit, the use, and the files in it that can go at any time.
_CGROUP_FILES = {
    2: ("", "memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")),
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}
_UNITS = {"": 1, "B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_TRIED = re.compile(r"tried to allocate ([\d.]+) ?(\w*)", re.IGNORECASE)


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be taken on a device; None where nothing tells.

    What torch keeps of a GPU for itself counts as free. On a CPU it is what the system calls
    available, the page cache included, or what a limit of cgroups leaves, if that is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return cpu_bytes(PROC, CGROUPS) if device.type == "cpu" else None


def cpu_bytes(proc: Path, cgroups: Path) -> int | None:
    """`available_bytes` of a CPU by the files of Linux; None on another system."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    if found is None:
        return None
    return min([int(found[1]) * 1024, *_left_by_cgroups(_read(proc / "self" / "cgroup"), cgroups)])


def check_memory(needs: Mapping[torch.device, int], *, what: str, remedy: str, promised: int = 0) -> None:
    """Raise `NotEnoughMemoryError` where a device has less than is needed there; before anything is taken.

    needs: bytes by device. what: who needs them for what. promised: bytes of each device that somebody
    else is about to take.
    """
    for device, needed in needs.items():
        if short_of(device, needed + promised) <= 0:
            continue
        there = max((available_bytes(device) or 0) - promised, 0)
        raise NotEnoughMemoryError(
            f"memory must suffice: {what} {gib(needed)} on {device}, and there is {gib(there)}; {remedy}",
            needed_bytes=needed,
            there_bytes=there,
        )


def short_of(device: torch.device, needed: int) -> int:
    """How many of the needed bytes a device lacks; 0 or less where it has them, or where nothing tells."""
    there = available_bytes(device)
    if there is not None and there < needed and device.type == "cpu":
        # What was freed may still be kept by the allocator, and can be had again.
        _trim()
        there = available_bytes(device)
    return needed - there if there is not None else 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch raised this for want of memory; not what this package raised itself."""
    if isinstance(error, RapidError):
        return False
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def out_of_memory(
    error: BaseException, devices: Sequence[tuple[str, torch.device]], *, remedy: str
) -> NotEnoughMemoryError:
    """What is raised in place of `error`, whose frames let go of their tensors.

    devices: where memory may have run out, each with what is there.
    """
    traceback.clear_frames(error.__traceback__)
    found = _TRIED.search(str(error))
    needed = int(float(found[1]) * _UNITS.get(found[2], 1)) if found is not None else None
    there = [(what, device, available_bytes(device)) for what, device in devices]
    places = [
        f"{gib(left) if left is not None else 'an unknown rest'} for the {what} on {device}"
        for what, device, left in there
    ]
    wanted = f"{gib(needed)} more were needed" if needed is not None else "more was needed than could be had"
    return NotEnoughMemoryError(
        f"memory must suffice, and it ran out: {wanted}, and there is {', '.join(places)}; {remedy}",
        needed_bytes=needed,
        there_bytes=min((left for _, _, left in there if left is not None), default=None),
    )


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 100 else f"{count / 2**20:,.2f} MiB"


def _left_by_cgroups(listed: str, cgroups: Path) -> list[int]:
    """What each limit leaves that holds for this process; listed: /proc/self/cgroup."""
    left = []
    for line in listed.splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, limit, use, files = _CGROUP_FILES[1 if controllers else 2]
        # In a container the path may be the host's, and the container's own folder stands at the root.
        place = Path(inside.lstrip("/"))
        for part in (place, *place.parents):
            at = cgroups / folder / part
            most, used = _read(at / limit).strip(), _read(at / use).strip()
            if most.isdecimal() and used.isdecimal():
                stat = dict(line.split(" ", 1) for line in _read(at / "memory.stat").splitlines())
                left.append(int(most) - int(used) + sum(int(stat.get(name, 0)) for name in files))
    return left


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
