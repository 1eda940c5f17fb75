"""A run that ended at any moment goes on to the same files, and only as it began."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from run_helpers import (
    about_documents,
    about_history,
    choices,
    made_engines,
    made_run,
    options,
)

from rapid_core import InputError, OptionError
from rapid_core.evaluation.answers_file import RunFolder, read_answers, read_measurements


@pytest.fixture(scope="module")
def engines():
    """One engine for all tests of this file: what is in its caches must not matter to any of them."""
    return made_engines()


RESUMED = options(methods=("lc", "rag", "sd", "rapid"), eta=(3, "auto"), gamma=3, temperature=0.7)


def resumed_tasks(**given):
    return [choices(documents=("Spain",), questions=1, max_new_tokens=4, **given), about_history(talks=("one",))]


@pytest.fixture(scope="module")
def whole(engines, tmp_path_factory):
    """A run that nothing interrupted: its folder and its answers as bytes."""
    folder = tmp_path_factory.mktemp("whole")
    made_run(folder, resumed_tasks(), RESUMED, engines)
    return folder, (folder / "answers.jsonl").read_bytes()


def copied(whole, folder, answers, measurements):
    """A folder with the beginnings of the files of a whole run, of so many bytes."""
    folder.mkdir()
    (folder / "run.json").write_bytes((whole / "run.json").read_bytes())
    for name, size in (("answers.jsonl", answers), ("measurements.jsonl", measurements)):
        (folder / name).write_bytes((whole / name).read_bytes()[:size])
    return folder


def test_a_run_that_ends_with_an_exception_at_any_line_goes_on_to_the_same_file(engines, tmp_path, whole):
    _, wanted = whole
    total = wanted.count(b"\n")
    assert total == 10

    def interrupt(done, *_):
        if done == stop:
            raise KeyboardInterrupt

    for stop in range(total):
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            made_run(folder, resumed_tasks(), RESUMED, engines, interrupt)
        assert len(read_answers(folder)) == stop
        made_run(folder, resumed_tasks(), RESUMED, engines)
        assert (folder / "answers.jsonl").read_bytes() == wanted
        assert len(read_measurements(folder)) == total


def test_a_run_that_is_interrupted_at_every_answer_comes_to_the_same_file(tmp_path, whole):
    _, wanted = whole
    engines = made_engines()

    def one_more(done, *_):
        if done > len(there):
            raise KeyboardInterrupt

    for _ in range(wanted.count(b"\n") - 1):
        there = read_answers(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            made_run(tmp_path, resumed_tasks(), RESUMED, engines, one_more)
        assert len(read_answers(tmp_path)) == len(there) + 1
    made_run(tmp_path, resumed_tasks(), RESUMED, engines)
    assert (tmp_path / "answers.jsonl").read_bytes() == wanted


def test_lines_that_were_not_written_whole_are_cut_off_and_asked_again(engines, tmp_path, whole):
    folder, wanted = whole
    measured = (folder / "measurements.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(wanted) if byte == 10]
    ends_measured = [place + 1 for place, byte in enumerate(measured) if byte == 10]
    drawn = random.Random(0)
    for number, line in enumerate((0, 4, 8)):
        before, end = ([0, *ends][line], ends[line])
        measured_before, measured_end = ([0, *ends_measured][line], ends_measured[line])
        # In the middle of an answer, and in the middle of the measurement that is written before it.
        cuts = [
            (drawn.randrange(before + 1, end), measured_end),
            (before, drawn.randrange(measured_before + 1, measured_end)),
            (before, measured_end),
            (end - 1, measured_end),
        ]
        for place, (answers, measurements) in enumerate(cuts):
            torn = copied(folder, tmp_path / f"{number} {place}", answers, measurements)
            made_run(torn, resumed_tasks(), RESUMED, engines)
            assert (torn / "answers.jsonl").read_bytes() == wanted
            assert len(read_measurements(torn)) == len(ends)


def test_a_finished_run_is_asked_nothing_more(engines, tmp_path, whole):
    folder, wanted = whole
    torn = copied(folder, tmp_path / "a", None, None)
    made_run(torn, resumed_tasks(), RESUMED, {"drafter": _NoEngine(engines["drafter"])})
    assert (torn / "answers.jsonl").read_bytes() == wanted
    assert (torn / "measurements.jsonl").read_bytes() == (folder / "measurements.jsonl").read_bytes()


class _NoEngine:
    """Counts tokens, and answers nothing."""

    def __init__(self, engine):
        self.count_tokens = engine.count_tokens


@pytest.mark.parametrize("name", ["answers.jsonl", "measurements.jsonl"])
@pytest.mark.parametrize("broken", [b"{", b"[]", b'{"question": 1}', b"", b"\xff\xfe"])
def test_a_broken_line_in_the_middle_is_named_with_its_number(engines, tmp_path, whole, name, broken):
    torn = copied(whole[0], tmp_path / "a", None, None)
    lines = (torn / name).read_bytes().split(b"\n")
    lines[6] = broken
    (torn / name).write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=rf"line 7 of '.*{name}' must be a line that a run wrote"):
        made_run(torn, resumed_tasks(), RESUMED, engines)
    assert (torn / name).read_bytes() == b"\n".join(lines)


def test_a_measurement_too_few_or_too_many_is_an_error(engines, tmp_path, whole):
    for number, keep in enumerate((lambda lines: lines[1:], lambda lines: [*lines, *lines[-1:], *lines[-1:]])):
        torn = copied(whole[0], tmp_path / str(number), None, None)
        file = torn / "measurements.jsonl"
        file.write_bytes(b"".join(keep(file.read_bytes().splitlines(keepends=True))))
        with pytest.raises(InputError, match="has its line in measurements.jsonl"):
            made_run(torn, resumed_tasks(), RESUMED, engines)


def test_answers_in_another_order_than_asked_are_an_error_with_the_line(engines, tmp_path, whole):
    torn = copied(whole[0], tmp_path / "a", None, None)
    for name in ("answers.jsonl", "measurements.jsonl"):
        lines = (torn / name).read_bytes().splitlines(keepends=True)
        lines[2:4] = lines[3:1:-1]
        (torn / name).write_bytes(b"".join(lines))
    with pytest.raises(InputError, match="line 3 of answers.jsonl has 'choice-Spain-0' by rapid.* by sd"):
        made_run(torn, resumed_tasks(), RESUMED, engines)


def test_a_run_goes_on_only_with_the_options_it_began_with(engines, tmp_path, whole):
    torn = copied(whole[0], tmp_path / "a", None, None)
    other = replace(RESUMED, eta=(5.0,), seed=3)
    with pytest.raises(OptionError) as error:
        made_run(torn, resumed_tasks(), other, engines)
    assert 'eta was [3.0, "auto"] and is [5.0]; seed was 0 and is 3' in str(error.value)
    begun = json.loads((torn / "run.json").read_text())
    with pytest.raises(OptionError, match=r'python was "3" and is "4"'):
        made_run(torn, resumed_tasks(), RESUMED, engines, begin=begun | {"versions": {"python": "4"}})


def test_a_run_goes_on_only_on_the_device_and_in_the_dtype_it_began_with(tmp_path):
    begun = {"options": {}, "versions": {}, "questions": "", "dtype": "float32", "device": "cpu"}
    RunFolder(tmp_path).open(begun).close()
    for name, other in (("dtype", "bfloat16"), ("device", "cuda:0")):
        with pytest.raises(OptionError, match=f'{name} was "{begun[name]}" and is "{other}"'):
            RunFolder(tmp_path).open(begun | {name: other})


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path))
    with pytest.raises(OptionError, match="cannot be written to; name another --out"):
        RunFolder(tmp_path / "new" / "run").check({"options": {}})
    assert not (tmp_path / "new").exists()


def test_a_process_that_does_not_get_the_folder_does_not_write_what_the_run_is(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    begun = {"options": {"seed": 0}, "versions": {}, "questions": ""}
    with (tmp_path / "measurements.jsonl").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OptionError, match="one process at a time"):
            RunFolder(tmp_path).open(begun)
        assert [file.name for file in tmp_path.iterdir()] == ["measurements.jsonl"]
    RunFolder(tmp_path).open(begun).close()
    assert json.loads((tmp_path / "run.json").read_text()) == begun


def test_a_run_goes_on_only_with_the_data_it_began_with(engines, tmp_path, whole):
    torn = copied(whole[0], tmp_path / "a", None, None)
    changed = resumed_tasks(evidence=(0, 7))
    with pytest.raises(OptionError, match="what is asked, its documents included, was of other data"):
        made_run(torn, changed, RESUMED, engines)


def test_answers_without_a_description_are_not_gone_on_with(engines, tmp_path, whole):
    torn = copied(whole[0], tmp_path / "a", None, None)
    (torn / "run.json").unlink()
    with pytest.raises(OptionError, match=r"have a run.json beside them.*name another --out"):
        made_run(torn, resumed_tasks(), RESUMED, engines)


def test_a_file_is_no_folder_of_a_run(engines, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is a file; name another --out"):
        made_run(tmp_path / "file", resumed_tasks(), RESUMED, engines)


def test_one_process_at_a_time_writes_to_a_folder(engines, tmp_path, whole):
    torn = copied(whole[0], tmp_path / "a", 0, 0)

    def begin_another(*_):
        with pytest.raises(OptionError, match="one process at a time writes to the folder of a run"):
            made_run(torn, resumed_tasks(), RESUMED, engines)

    made_run(torn, resumed_tasks(), RESUMED, engines, begin_another)
    assert (torn / "answers.jsonl").read_bytes() == whole[1]


def test_answers_read_back_are_those_that_were_written(engines, tmp_path):
    task = about_documents(groups=("easy", "short"), source="own — \u2028", documents=("a\nb",))
    answers = made_run(tmp_path, [task, choices()], options(methods=("lc", "rag")), engines)
    assert read_answers(tmp_path) == answers and answers[0].source == "own — \u2028"
    keys = [list(json.loads(line)) for line in (tmp_path / "answers.jsonl").read_bytes().split(b"\n")[:-1]]
    assert all(key == sorted(key) for key in keys)
