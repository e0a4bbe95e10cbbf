"""Lines of a sweep whose runs are attacked: each scenario, without a defence and as it was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...runs.evidence.evidence import read_attack
from ...runs.sweep.results import POINTS, PointResult

__all__ = ["ATTACK", "AttackedLine", "attacked_lines"]

ATTACK = "attack"
"""The key of a line that says what was attacked, beside the swept keys."""
_ROWS = ("no defence", "defended")
_SCORES = ("mse", "psnr", "ssim")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedLine:
    """What was attacked in one way.

    Attributes:
        name: "no defence" or "defended", and the scenario.
        scores: mse, psnr and ssim by seed, each the mean over images and attacked rounds.
    """

    name: str
    scores: Mapping[str, Mapping[int, float]]


def attacked_lines(out: Path, results: Sequence[PointResult]) -> list[AttackedLine]:
    """The lines of the runs of one setting.

    Args:
        results: of its runs, which differ in their seed alone.
    """
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for one in results:
        kept = read_attack(out / POINTS / one.name) if one.attacked else None
        for scenario in () if kept is None else kept.scenarios:
            if scenario.attack:  # one that somebody added to a run would be in no other's mean
                continue
            for row in scenario.rows:
                if row.name not in _ROWS:
                    continue
                scores = found.setdefault(f"{row.name}, {scenario.scenario}", {})
                for score in _SCORES:
                    values = scores.setdefault(score, {}).setdefault(one.seed, [])
                    values.append(getattr(row.mean, score))
    return [
        AttackedLine(
            name=name,
            scores={
                score: {seed: sum(values) / len(values) for seed, values in by_seed.items()}
                for score, by_seed in scores.items()
            },
        )
        for name, scores in sorted(found.items(), key=lambda item: item[0].startswith(_ROWS[1]))
    ]
