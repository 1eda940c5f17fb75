"""Files, folders and standard input, read as one document."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from pypdf import PdfReader

from rapid_core.errors import DocumentError

PYTHON_REFERENCE = "python-reference"
# A file with a zero byte in its beginning is not text in any encoding that is read here.
SNIFFED_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """What was read. `skipped` names every file of a folder that was not, with the reason."""

    text: str
    name: str
    skipped: tuple[str, ...] = ()


def read_document(name: str) -> ReadDocument:
    """Read a text, Markdown or PDF file, a folder of source files, "-", or "python-reference".

    Raises `DocumentError` with the reason and the remedy.
    """
    if name == PYTHON_REFERENCE:
        return ReadDocument(_python_reference(), name)
    if name == "-":
        if sys.stdin is None:
            raise DocumentError("'-' reads standard input, and this program has none; name a file")
        return _checked(_decode(sys.stdin.buffer.read(), "standard input"), "standard input")
    try:
        path = Path(name).expanduser()
        folder, there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise DocumentError(f"{name[:100]!r} is no path that can be read: {error}; name a file or folder") from error
    # An empty name would be the folder that the program runs in.
    if folder and name.strip():
        return _read_folder(path)
    if not there or not name.strip():
        raise DocumentError(
            f"no document at {name!r}; name a text, Markdown or PDF file, a folder, '-' for standard input, "
            f"or {PYTHON_REFERENCE!r}"
        )
    return _checked(_read_file(path), name)


def _read_file(path: Path) -> str:
    try:
        if path.suffix.lower() == ".pdf":
            return _read_pdf(path)
        return _decode(path.read_bytes(), str(path))
    except DocumentError:
        raise
    except OSError as error:
        raise DocumentError(f"{str(path)!r} could not be read: {error.strerror}; check the file") from error


def _read_pdf(path: Path) -> str:
    # pypdf writes what it stumbles over to the log; what ends the reading is raised.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        pages = [page.extract_text() for page in PdfReader(path).pages]
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the parser raise almost anything
        reason = str(error) or type(error).__name__
        raise DocumentError(
            f"{str(path)!r} is no PDF that can be read: {reason}; repair or decrypt it first"
        ) from error
    text = "\n\n".join(page for page in pages if page.strip())
    if not text:
        raise DocumentError(
            f"{str(path)!r} has {len(pages)} pages and no text on them; it is probably a scan: recognise its text first"
        )
    return text


def _read_folder(folder: Path) -> ReadDocument:
    """The text files below a folder, in order of their paths, each under its own path as a heading."""
    parts, skipped = [], []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            continue
        try:
            text = _read_file(path)
        except DocumentError as error:
            skipped.append(str(error))
            continue
        if text.strip():
            parts.append(f"=== {inside.as_posix()} ===\n\n{text.strip()}")
    if not parts:
        raise DocumentError(
            f"folder {str(folder)!r} holds no text file; name a folder of sources, Markdown, text or PDF"
        )
    return ReadDocument("\n\n".join(parts), str(folder), tuple(skipped))


def _decode(data: bytes, name: str) -> str:
    if b"\0" in data[:SNIFFED_BYTES]:
        raise DocumentError(f"{name!r} must be text, and it is a binary file; convert it to text or PDF first")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{name!r} must be UTF-8, and byte {error.start} is not; convert it with: iconv -f latin1 -t utf-8"
        ) from error


def _checked(text: str, name: str) -> ReadDocument:
    if not text.strip():
        raise DocumentError(f"{name!r} must not be empty, and it has no text; name a document with text in it")
    return ReadDocument(text, name)


def _python_reference() -> str:
    """The language reference that comes with CPython, its topics in order of their names."""
    return "\n\n".join(text.strip() for _, text in sorted(topics.items()))
