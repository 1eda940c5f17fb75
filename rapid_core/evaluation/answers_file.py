"""The files of a run: one line an answer, one a measurement, and what the run was.

A run that was killed at any moment goes on where its files end. A measurement is written before
its answer, so that only the newest one can be without, and a line that ends in the middle can
only be the last one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from io import BufferedWriter
from pathlib import Path
from typing import Any, Self, TypeVar

from rapid_core.errors import InputError, OptionError
from rapid_core.evaluation.records import Answer, Measurement, Setting

if sys.platform != "win32":
    import fcntl

ANSWERS, MEASUREMENTS, RUN = "answers.jsonl", "measurements.jsonl", "run.json"
T = TypeVar("T")
# What a run must have in common with its beginning: else its answers could not stand in one table.
SAME = ("options", "versions", "dtype", "device", "questions")


class RunFolder:
    """The folder that a run writes to and goes on from.

    answers, measurements: what is in it. Leaving a `with` block closes the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.answers: list[Answer] = []
        self.measurements: list[Measurement] = []
        self._files: list[BufferedWriter] = []

    def check(self, description: dict[str, Any]) -> None:
        """Raise `OptionError` where a run with other options has begun here, or none can be written.

        description: as for `open`; what it does not have yet is not compared.
        """
        file = self._folder / RUN
        if self._folder.exists() and not self._folder.is_dir():
            raise OptionError(f"a run has a folder, and {str(self._folder)!r} is a file; name another --out")
        there = next(folder for folder in (self._folder, *self._folder.absolute().parents) if folder.exists())
        if not os.access(there, os.W_OK):
            raise OptionError(
                f"a run writes to its folder, and {str(there)!r} cannot be written to; name another --out"
            )
        if not file.exists():
            if (self._folder / ANSWERS).exists():
                raise OptionError(
                    f"answers that a run goes on from have a {RUN} beside them, and {str(self._folder)!r} has none; "
                    "name another --out"
                )
            return
        begun = read_description(self._folder)
        differing = [
            f"{name} was {before} and is {now}"
            for part in SAME
            if part in description
            for name, before, now in _differences(part, begun.get(part), _plain(description[part]))
        ]
        if differing:
            raise OptionError(
                f"the run in {str(self._folder)!r} goes on only as it began: {'; '.join(differing)}; repeat its "
                "options, or name another --out"
            )

    def open(self, description: dict[str, Any]) -> Self:
        """Begin a run or go on with one: cut off what was not written whole, and read the rest.

        description: what the run is, for JSON, with "options", "versions", "dtype", "device" and "questions",
        which must stay the same. Raises `OptionError` where they did not, and `InputError` for a broken line.
        """
        self.check(description)
        self._folder.mkdir(parents=True, exist_ok=True)
        # The lock is on the first of them; answers without a description are not gone on with.
        self._files = [(self._folder / MEASUREMENTS).open("ab")]
        try:
            self._lock()
            if (self._folder / RUN).exists():
                # Another process may have begun since.
                self.check(description)
            else:
                self._replace(RUN, _described(description))
            self._files.append((self._folder / ANSWERS).open("ab"))
            for name in (ANSWERS, MEASUREMENTS):
                _cut_torn_line(self._folder / name)
            self.answers = read_answers(self._folder)
            self._read_measurements()
        except BaseException:
            self.close()
            raise
        return self

    def append(self, answer: Answer, measurement: Measurement | None) -> None:
        """Write an answer and what it took, which one that failed does not have."""
        measurements, answers = self._files
        if measurement is not None:
            _write(measurements, asdict(measurement))
            self.measurements.append(measurement)
        _write(answers, asdict(answer))
        self.answers.append(answer)

    def rewrite(self, description: dict[str, Any], answers: Sequence[Answer]) -> None:
        """Put other scores and another description in the place of those in the open folder.

        The description goes first: answers that it promises more of are found to be missing.
        """
        self._replace(RUN, _described(description))
        measurements, old = self._files
        old.close()
        self._replace(ANSWERS, b"".join(map(_line, map(asdict, answers))))
        self._files = [measurements, (self._folder / ANSWERS).open("ab")]
        self.answers = list(answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, and let another process write to them."""
        for file in self._files:
            file.close()

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file as a whole or not at all."""
        draft = self._folder / f"{name}.draft"
        draft.write_bytes(content)
        draft.replace(self._folder / name)

    def _lock(self) -> None:
        """Keep other processes out until the files are closed, or this process ends however it may."""
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OptionError(
                f"one process at a time writes to the folder of a run, and another one has {str(self._folder)!r}; wait "
                "for it, or name another --out"
            ) from error

    def _read_measurements(self) -> None:
        """Read the measurements of the answers; one of an answer that was not written is cut off."""
        found = read_measurements(self._folder)
        wanted = [(answer.question, answer.setting) for answer in self.answers if not answer.error]
        there = [(measurement.question, measurement.setting) for measurement in found]
        if there[: len(wanted)] != wanted or len(there) > len(wanted) + 1:
            raise InputError(
                f"each answer in {ANSWERS} has its line in {MEASUREMENTS}, in the same order, and those in "
                f"{str(self._folder)!r} do not match; name another --out"
            )
        self.measurements = found[: len(wanted)]
        if len(there) > len(wanted):
            file = self._folder / MEASUREMENTS
            lines = file.read_bytes().split(b"\n")
            os.truncate(file, sum(len(line) + 1 for line in lines[: len(wanted)]))


def read_description(folder: Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    """What the run in a folder is. Raises `InputError` where there is none, or one that lacks what is needed."""
    file = folder / RUN
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"a run has a file {RUN}, and {str(folder)!r} has none; name the folder of a run") from error
    except ValueError as error:
        raise InputError(f"{str(file)!r} must be JSON: {error}; name the folder of another run") from error
    if not isinstance(found, dict):
        raise InputError(f"{str(file)!r} must hold one JSON object, got {type(found).__name__}")
    if missing := [name for name in needed if name not in found]:
        raise InputError(
            f"the {RUN} of a run has {', '.join(needed)}, got none of {', '.join(missing)}; restore the file"
        )
    return found


def read_answers(folder: Path) -> list[Answer]:
    """The answers in a folder, in their order. Raises `InputError` that names a broken line."""
    return _read_lines(folder / ANSWERS, _answer)


def read_measurements(folder: Path) -> list[Measurement]:
    """The measurements in a folder, in their order. Raises `InputError` that names a broken line."""
    return _read_lines(folder / MEASUREMENTS, _measurement)


def _read_lines(file: Path, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """What the whole lines of a file hold; what stands behind the last of them was not written whole."""
    if not file.exists():
        return []
    found = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            found.append(read(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"line {number} of {str(file)!r} must be a line that a run wrote: {error}; restore the file, or name "
                "another --out"
            ) from error
    return found


def _answer(found: dict[str, Any]) -> Answer:
    likelihoods = found["likelihoods"]
    return Answer(
        **found
        | {
            "setting": Setting(**found["setting"]),
            "groups": tuple(found["groups"]),
            "references": tuple(found.get("references", ())),
            "notes": tuple(found["notes"]),
            "likelihoods": None if likelihoods is None else tuple(likelihoods),
        }
    )


def _measurement(found: dict[str, Any]) -> Measurement:
    return Measurement(**found | {"setting": Setting(**found["setting"])})


def _write(file: BufferedWriter, found: dict[str, Any]) -> None:
    file.write(_line(found))
    file.flush()


def _line(found: dict[str, Any]) -> bytes:
    return json.dumps(found, ensure_ascii=False, allow_nan=False, sort_keys=True).encode() + b"\n"


def _described(description: dict[str, Any]) -> bytes:
    return (json.dumps(description, ensure_ascii=False, indent=1) + "\n").encode()


def _cut_torn_line(file: Path) -> None:
    os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


def _plain(found: object) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(found))


def _differences(part: str, before: Any, now: Any) -> Iterator[tuple[str, str, str]]:
    """What differs, by name, as a reader of JSON would see it."""
    if part == "questions":
        # Two hashes tell nobody anything.
        if before != now:
            yield "what is asked, its documents included,", "of other data", "not the same"
        return
    if not isinstance(before, dict) or not isinstance(now, dict):
        if before != now:
            yield part, json.dumps(before), json.dumps(now)
        return
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            yield name, json.dumps(before.get(name)), json.dumps(now.get(name))
