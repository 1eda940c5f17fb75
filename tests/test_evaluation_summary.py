"""What the records of a run say, against hand-worked ones."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from evaluation_records import LC, RAG, RAPID, SD, answer_of, made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_core import InputError
from rapid_core.evaluation import statistics
from rapid_core.evaluation.records import Measurement, Setting
from rapid_core.evaluation.statistics import Quartiles
from rapid_core.evaluation.summary import summarize


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """Means do not depend on how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 200)
        yield


F1 = {"short-answer": {"f1": "token F1"}}


def comparison_of(answers, measurements=(), metrics=F1, **options):
    (task,) = summarize(answers, measurements, metrics, **options).tasks
    (comparison,) = task.comparisons
    return comparison


def both(setting, *scores, document=None, **fields):
    """Answers of one setting to q0, q1, ...; None is a question that it did not answer."""
    return [
        answer_of(f"q{number}", setting, score, document=document or f"d{number}", **fields)
        for number, score in enumerate(scores)
        if score is not None
    ]


def test_means_and_differences_are_over_the_questions_that_all_settings_answered():
    answers = both(LC, 0.0, 0.5, 1.0, 0.2) + both(RAG, 1.0, 0.5, 0.0, None) + both(RAPID, 1.0, 1.0, None, 1.0)
    found = comparison_of(answers)
    means = {setting: score.mean.value for setting, score in found.scores["f1"].items()}
    assert means == {LC: 0.25, RAG: 0.75, RAPID: 1.0}
    differences = {
        setting: score.difference and score.difference.value for setting, score in found.scores["f1"].items()
    }
    assert differences == {LC: None, RAG: 0.5, RAPID: 0.75}
    assert (found.asked, found.answered, found.documents) == (4, 2, 2)
    assert found.missing == {RAG: 1, RAPID: 1} and found.failed == {}


def test_answers_with_an_error_count_as_failed_and_with_no_figure():
    answers = [*both(LC, 0.0, 1.0), *both(RAG, 1.0), answer_of("q1", RAG, error="too long", document="d1")]
    found = comparison_of(answers)
    assert found.failed == {RAG: {"too long": 1}} and found.missing == {}
    assert found.answered == 1 and found.scores["f1"][LC].mean.value == 0.0


def test_a_setting_without_any_answer_leaves_the_others_comparable():
    answers = both(LC, 0.0, 1.0) + both(RAPID, 1.0, 1.0) + [answer_of("q0", RAG, error="broken")]
    found = comparison_of(answers)
    assert found.answered == 2 and set(found.scores["f1"]) == {LC, RAPID}
    assert found.scores["f1"][RAPID].difference.value == 0.5
    assert "No answers at all, and so no figures, of: rag." in found.remarks


def test_the_difference_is_paired():
    # Questions differ by much more than settings do: paired, the gain of 0.1 is certain.
    lc = [0.0, 0.2, 0.4, 0.6, 0.8, 0.1, 0.3, 0.5, 0.7, 0.9]
    found = comparison_of(both(LC, *lc) + both(RAPID, *(score + 0.1 for score in lc)))
    interval = found.scores["f1"][RAPID].difference.interval
    assert (interval.low, interval.high) == (0.1, 0.1)
    assert found.scores["f1"][LC].mean.interval.high > 0.55


def test_groups_and_sources_are_told_apart_in_the_order_of_longbench():
    fields = [("hard", "long"), ("easy", "short"), ("easy", "medium"), ("hard", "odd")]
    answers = []
    for number, groups in enumerate(fields):
        for setting, score in ((LC, 0.0), (RAPID, number / 4)):
            own = {"document": f"d{number}", "groups": groups, "source": "ab"[number % 2]}
            answers.append(answer_of(f"q{number}", setting, score, **own))
    found = comparison_of(answers)
    assert [(part.name, part.questions) for part in found.groups] == [
        ("easy", 2),
        ("hard", 2),
        ("short", 1),
        ("medium", 1),
        ("long", 1),
        ("odd", 1),
    ]
    easy, hard = found.groups[:2]
    assert easy.scores[RAPID].mean.value == (0.25 + 0.5) / 2 and hard.scores[RAPID].difference.value == 0.375
    assert {part.name: part.scores[RAPID].mean.value for part in found.sources} == {"a": 0.25, "b": 0.5}


def test_each_length_of_the_context_has_its_own_baseline():
    short, long = ({"context_tokens": tokens} for tokens in (1000, 2000))
    answers = [
        *both(replace(LC, **long), 0.0, 0.0),
        *both(replace(RAPID, **long), 1.0, 1.0),
        *both(replace(LC, **short), 0.5, 0.5),
        *both(replace(RAPID, **short), 0.75, 0.75),
    ]
    (task,) = summarize(answers, [], F1).tasks
    assert [each.context_tokens for each in task.comparisons] == [1000, 2000]
    assert task.score(replace(RAPID, **short)).difference.value == 0.25
    assert task.score(replace(RAPID, **long)).difference.value == 1.0


def test_who_gets_it_right_is_a_partition_of_the_questions():
    # Right is an F1 of 0.5 and more. Rows: lc, rag, rapid.
    cells = [(0.4, 0.49, 0.5), (0.0, 0.1, 1.0), (0.5, 0.0, 0.0), (0.0, 0.9, 0.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    lc, rag, rapid = zip(*cells, strict=True)
    (found,) = comparison_of(both(LC, *lc) + both(RAG, *rag) + both(RAPID, *rapid)).partitions
    shares = {cell: share.value for cell, share in found.shares.items() if share.value}
    assert shares == pytest.approx(
        {
            (False, False, True): 2 / 6,
            (True, False, False): 1 / 6,
            (False, True, False): 1 / 6,
            (True, True, True): 1 / 6,
            (False, False, False): 1 / 6,
        }
    )
    assert found.questions == 6 and sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("metric", "right"), [("accuracy_letter", 1), ("exact_match", 1), ("f1", 2), ("rouge_l", None)]
)
def test_what_is_right_depends_on_the_metric(metric, right):
    answers = [
        answer_of(f"q{number}", setting, scores={metric: score if setting == RAPID else 0.0}, document=f"d{number}")
        for setting in (LC, RAG, RAPID)
        for number, score in enumerate((0.6, 1.0, 0.0))
    ]
    found = comparison_of(answers, metrics={"short-answer": {metric: "Metric"}})
    if right is None:
        assert not found.partitions and any("no value of Metric says" in remark for remark in found.remarks)
    else:
        (partition,) = found.partitions
        assert partition.shares[False, False, True].value == pytest.approx(right / 3)


def test_rapid_without_a_score_of_the_main_metric_is_in_no_partition():
    others = {"exact_match": 1.0}
    answers = [answer_of(f"q{n}", setting, 1.0, document=f"d{n}") for n in range(3) for setting in (LC, RAG)]
    answers += [answer_of(f"q{n}", RAPID, document=f"d{n}", scores=others) for n in range(3)]
    found = comparison_of(answers)
    assert found.partitions == () and found.scores["f1"][LC].mean.value == 1.0


def test_rapid_stands_beside_the_rag_that_reads_the_same_passages():
    near, far = replace(RAG, retrieved_tokens=512), replace(RAG, retrieved_tokens=1024)
    rapid = [replace(RAPID, retrieved_tokens=tokens) for tokens in (512, 1024, 2048)]
    found = comparison_of([a for setting in (LC, near, far, *rapid) for a in both(setting, 0.0, 1.0)])
    assert [(each.rapid, each.rag) for each in found.partitions] == [(rapid[0], near), (rapid[1], far)]
    assert any("2,048 retrieved" in remark and "rag" in remark for remark in found.remarks)


def test_rapid_with_unrelated_passages_stands_beside_rag_with_them():
    unrelated = [replace(setting, unrelated=True) for setting in (RAG, RAPID)]
    found = comparison_of([a for setting in (LC, RAG, RAPID, *unrelated) for a in both(setting, 0.0, 1.0)])
    assert [(each.rapid, each.rag) for each in found.partitions] == [(RAPID, RAG), (unrelated[1], unrelated[0])]


def test_a_baseline_that_drafts_is_the_one_of_the_same_gamma():
    few, many = replace(SD, gamma=2), replace(SD, gamma=20)
    rapid = [replace(RAPID, gamma=gamma) for gamma in (2, 20)]
    found = comparison_of([a for s in (few, many, *rapid) for a in both(s, 0.0, 1.0)], baseline="sd")
    assert found.baselines == {rapid[0]: few, rapid[1]: many}


def test_equal_texts_are_counted_for_settings_that_are_lossless():
    zero = replace(RAPID, method="rapid-upward", eta=0.0)
    answers = [
        *both(LC, 0, 0, 0, text="Lima"),
        *both(SD, 0, 0, text="Lima"),
        answer_of("q2", SD, 0, document="d2", text="Oslo"),
        *both(zero, 0, 0, 0, text="Lima", reasoning="Thinking"),
        *both(RAPID, 0, 0, 0, text="Lima"),
    ]
    found = comparison_of(answers)
    assert [(each.setting, each.equal, each.questions) for each in found.equalities] == [(SD, 2, 3), (zero, 0, 3)]


def measured(question, setting, **fields):
    return Measurement(question=question, setting=setting, **fields)


def test_speed_by_hand():
    measurements = [
        measured("q0", LC, prefill_s=10.0, decode_s=2.0, tokens=10, rounds=10),
        measured("q1", LC, prefill_s=20.0, decode_s=1.0, tokens=10, rounds=10),
        measured("q2", LC, prefill_s=30.0, decode_s=4.0, tokens=8, rounds=8),
        measured("q0", RAPID, prefill_s=10.0, decode_s=1.0, tokens=10, rounds=2, drafted=20, accepted=8),
        measured("q1", RAPID, prefill_s=20.0, decode_s=2.0, tokens=10, rounds=4, drafted=30, accepted=6),
        measured("q2", RAPID, prefill_s=30.0, decode_s=1.0, tokens=6, rounds=4, drafted=30, accepted=2),
    ]
    measurements = [
        replace(each, retrieval_s=0.5, draft_prefill_s=2.0) if each.setting == RAPID else each for each in measurements
    ]
    found = comparison_of(both(LC, 0, 0, 0) + both(RAPID, 0, 0, 0), measurements).speeds
    lc, rapid = found[LC], found[RAPID]
    assert lc.tokens_per_s == Quartiles(5, 3.5, 7.5, 3) and lc.pooled == 28 / 7
    assert lc.acceptance is None and lc.tokens_per_round == 1.0 and lc.over_baseline is None
    # 10 / 5, 5 / 10 and 6 / 2, question by question.
    assert rapid.over_baseline == Quartiles(2, 1.25, 2.5, 3)
    assert rapid.acceptance == 16 / 80 and rapid.tokens_per_round == 26 / 10 and rapid.pooled == 26 / 4
    assert rapid.prefill_s.median == 20 and rapid.draft_prefill_s == Quartiles(2, 2, 2, 3)
    # 13.5, 24.5 and 33.5.
    assert rapid.total_s == Quartiles(24.5, 19, 29, 3)


def test_no_tokens_no_time_and_times_that_are_no_numbers_give_no_speed():
    measurements = [
        *(measured(f"q{number}", LC, decode_s=1.0, tokens=4, rounds=4) for number in range(4)),
        measured("q0", RAPID, decode_s=1.0, tokens=0, rounds=1),
        measured("q1", RAPID, decode_s=0.0, tokens=4, rounds=1),
        measured("q2", RAPID, decode_s=math.nan, tokens=4, rounds=1),
        measured("q3", RAPID, decode_s=0.5, tokens=4, rounds=1),
    ]
    summary = summarize(both(LC, 0, 0, 0, 0) + both(RAPID, 0, 0, 0, 0), measurements, F1)
    (comparison,) = summary.tasks[0].comparisons
    rapid = comparison.speeds[RAPID]
    assert rapid.questions == comparison.speeds[LC].questions == 3
    assert rapid.over_baseline == Quartiles(2, 2, 2, 1)
    assert "Measurements left out, since a time of theirs is below zero or no number: 1." in summary.notes
    assert "Answers without a measurement, which no figure of speed counts: 1." in comparison.remarks


def test_a_run_without_times_has_scores_and_no_speed():
    found = comparison_of(both(LC, 0, 1) + both(RAPID, 1, 1))
    assert found.speeds == {} and found.scores["f1"][RAPID].difference.value == 0.5


def test_a_run_without_the_baseline_has_scores_and_no_differences():
    found = comparison_of(both(RAG, 0, 1) + both(RAPID, 1, 1), [measured("q0", RAPID, decode_s=1.0, tokens=4)])
    assert found.scores["f1"][RAPID].mean.value == 1.0 and found.scores["f1"][RAPID].difference is None
    assert found.speeds[RAPID].pooled == 4.0 and found.speeds[RAPID].over_baseline is None
    assert any(
        "no single setting of lc" in remark and remark.endswith("rag; rapid, eta 10, gamma 10.")
        for remark in found.remarks
    )


def test_another_baseline_can_be_named():
    found = comparison_of(both(LC, 0, 0) + both(RAG, 1, 1) + both(RAPID, 0.5, 0.5), baseline="rag")
    assert {setting: score.difference.value for setting, score in found.scores["f1"].items() if score.difference} == {
        LC: -1.0,
        RAPID: -0.5,
    }


@pytest.mark.parametrize(
    ("scores", "document", "remark"),
    [
        ((1,), None, "There is one question"),
        ((0, 1, 1), "d", "The questions are about 1 document, too few"),
        ((0, 1, 1), None, "The questions are about 3 documents, too few"),
        ((math.nan, 1, 1), None, "In token F1 2 scores are no numbers"),
        ((None,), None, None),
    ],
)
def test_what_cannot_be_told_is_said(scores, document, remark):
    answers = both(LC, *scores, document=document) + both(RAPID, *scores, document=document)
    if remark is None:
        assert summarize(answers, [], F1).notes == ("No question of the task 'short-answer' was asked.",)
    else:
        assert any(remark in said for said in comparison_of(answers).remarks)


def test_nothing_in_common_is_said():
    found = comparison_of(both(LC, 1, None) + both(RAPID, None, 1))
    assert found.answered == 0 and found.scores["f1"] == {}
    assert "No question has a score of every setting: nothing can be compared." in found.remarks


def test_a_metric_that_some_answers_lack_counts_the_others():
    answers = [
        replace(a, scores={"f1": 1.0} | ({"judge": 0.5} if a.question != "q0" else {})) for a in both(LC, 1, 1, 1)
    ]
    found = comparison_of(answers, metrics={"short-answer": {"f1": "token F1", "judge": "judge"}})
    assert found.scores["judge"][LC].mean.questions == 2 and found.scores["f1"][LC].mean.questions == 3
    assert any(remark.startswith("In judge 2 of the 3 questions count") for remark in found.remarks)


def test_sweeps_are_of_settings_that_differ_in_one_option():
    etas = [replace(RAPID, eta=eta) for eta in (20, 5, "auto")]
    unrelated = [replace(RAPID, eta=5, unrelated=True), replace(SD, unrelated=True)]
    everything = (LC, RAG, SD, *etas, *unrelated)
    (task,) = summarize([a for setting in everything for a in both(setting, 1, 0)], [], F1).tasks
    (sweep,) = task.sweeps
    assert (sweep.option, sweep.values) == ("eta", ("0", "5", "20", "auto"))
    assert [list(curve.settings.values()) for curve in sweep.curves] == [
        [SD, etas[1], etas[0], etas[2]],
        [unrelated[1], unrelated[0]],
    ]
    assert [(each.unrelated, each.related) for each in task.unrelated] == [
        (unrelated[1], SD),
        (unrelated[0], etas[1]),
    ]


def test_lengths_are_swept_for_every_method_and_the_engines_own_comes_last():
    everything = [replace(s, context_tokens=tokens) for s in (LC, RAPID) for tokens in (None, 8000, 16000)]
    everything += [replace(RAPID, retrieved_tokens=512)]
    (task,) = summarize([a for setting in everything for a in both(setting, 1, 0)], [], F1).tasks
    retrieved, context = task.sweeps
    assert (retrieved.option, retrieved.values) == ("retrieved_tokens", ("512", "engine's own"))
    assert context.values == ("8,000", "16,000", "all of it")
    assert [curve.rest for curve in context.curves] == [LC, RAPID]


def test_records_that_contradict_each_other_are_refused():
    answers = both(LC, 1, 1)
    with pytest.raises(InputError, match="'lc' answered 'q1' twice"):
        summarize([*answers, answers[1]], [], F1)
    with pytest.raises(InputError, match="that of 'lc' to 'q0' was twice"):
        summarize(answers, [measured("q0", LC)] * 2, F1)
    with pytest.raises(InputError, match="every task must have a metric, got none for short-answer"):
        summarize(answers, [], {})
    with pytest.raises(InputError, match="got none for dialogue"):
        summarize(answers, [], F1 | {"dialogue": {}})


def test_notes_of_the_engine_are_counted_by_kind():
    notes = [("cut", "eta 7.5 for 1,024 tokens"), ("eta 10 for 96 tokens",), ("cut", "eta of 5"), ("eta of 5",)]
    answers = [replace(a, notes=own) for a, own in zip(both(LC, 1, 1, 1, 1), notes, strict=True)]
    assert list(summarize(answers, [], F1).decided.items()) == [("cut", 2), ("eta # for # tokens", 2), ("eta of 5", 2)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 3))
def test_the_order_of_the_records_does_not_matter(seed, documents, questions):
    answers, measurements = made_up(documents=documents, questions=questions, seed=seed)
    shuffled = random.Random(seed)
    others = shuffled.sample(answers, len(answers)), shuffled.sample(measurements, len(measurements))
    metrics = {"short-answer": {"f1": "token F1", "exact_match": "exact match"}}
    assert repr(summarize(*others, metrics)) == repr(summarize(answers, measurements, metrics))


def test_settings_stand_in_the_order_of_methods_and_options():
    upward = Setting(method="rapid-upward", eta=40, gamma=10)
    mine = Setting(method="a-method-of-mine")
    etas = [replace(RAPID, eta=eta) for eta in (5, 10.0, 40, "auto")]
    everything = [mine, upward, etas[3], etas[1], etas[0], etas[2], SD, RAG, LC]
    found = comparison_of([a for setting in everything for a in both(setting, 1)])
    assert found.settings == (LC, RAG, SD, *etas, upward, mine)
