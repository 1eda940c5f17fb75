"""The settings of one task at one length of the context, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapid_core.evaluation.pairing import Compared
from rapid_core.evaluation.records import Answer, Setting
from rapid_core.evaluation.remarks import remarks
from rapid_core.evaluation.scores import Score, scored, scores
from rapid_core.evaluation.shares import Equality, Partition, equalities, partitions
from rapid_core.evaluation.speed import Measured, Speed, speeds

# As LongBench v2 tells its questions apart; other groups come behind, by name.
GROUPS = ("easy", "hard", "short", "medium", "long")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The main metric over some of the questions: a group, or those of one source."""

    name: str
    questions: int
    scores: Mapping[Setting, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the settings of a task at one length of the context gave.

    asked: questions. answered: by every setting that answered any; documents: of these. baselines:
    of each setting that has one. scores: by metric. failed: how often which error ended a
    setting's answers. missing: of the asked questions, how many have no record of a setting.
    remarks: what cannot be told, and why.
    """

    context_tokens: int | None
    settings: tuple[Setting, ...]
    asked: int
    answered: int
    documents: int
    baselines: Mapping[Setting, Setting]
    scores: Mapping[str, Mapping[Setting, Score]]
    groups: tuple[Part, ...]
    sources: tuple[Part, ...]
    partitions: tuple[Partition, ...]
    equalities: tuple[Equality, ...]
    speeds: Mapping[Setting, Speed]
    failed: Mapping[Setting, Mapping[str, int]]
    missing: Mapping[Setting, int]
    remarks: tuple[str, ...]


def compare(found: Compared, titles: Mapping[str, str], measured: Measured, *, baseline: str, seed: int) -> Comparison:
    """Everything about settings that answered the same questions. titles: of the metrics, the main one first."""
    partners = {setting: found.partner(baseline, setting) for setting in found.settings}
    baselines = {setting: partner for setting, partner in partners.items() if partner not in {None, setting}}
    main = next(iter(titles), "")
    every = scored(found, main)
    groups = {name: [a for a in every if name in a.groups] for name in _groups(every)}
    sources = {name: [a for a in every if a.source == name] for name in sorted({a.source for a in every})}
    answered = found.shared()

    def over(metric: str, within: Sequence[Answer]) -> dict[Setting, Score]:
        return scores(found, metric, baselines, within, seed=seed)

    return Comparison(
        context_tokens=found.context_tokens,
        settings=found.settings,
        asked=len(found.asked),
        answered=len(answered),
        documents=len({answer.document for answer in answered}),
        baselines=baselines,
        scores={metric: over(metric, scored(found, metric)) for metric in titles},
        groups=tuple(Part(name=name, questions=len(own), scores=over(main, own)) for name, own in groups.items()),
        sources=tuple(Part(name=name, questions=len(own), scores=over(main, own)) for name, own in sources.items()),
        partitions=tuple(partitions(found, main, seed=seed)),
        equalities=tuple(equalities(found, baselines)),
        speeds=speeds(found, measured, baselines),
        failed=found.failed,
        missing=found.missing,
        remarks=tuple(remarks(found, titles, measured, baselines, baseline)),
    )


def _groups(answers: Sequence[Answer]) -> list[str]:
    names = {group for answer in answers for group in answer.groups}
    return sorted(names, key=lambda name: (GROUPS.index(name) if name in GROUPS else len(GROUPS), name))
