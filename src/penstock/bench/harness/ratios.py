"""Ratios of paired measurements: the median and a bootstrap interval, deterministic for the same samples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

RESAMPLES = 10_000
COVERAGE = 0.95
SEED = 1


class Ratio(msgspec.Struct, rename="camel"):
    """The median of NEW/OLD over the pairs, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float

    def is_above(self, limit: float) -> bool:
        """Whether the whole interval lies above the limit."""
        return self.low > limit


def order_of(pair: int) -> tuple[Literal["old", "new"], Literal["old", "new"]]:
    """OLD first in even pairs, NEW first in odd ones, so that a steady drift of the machine cancels."""
    return ("old", "new") if pair % 2 == 0 else ("new", "old")


def compute_ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """The ratio of paired samples. The pairs are resampled, not the sides, because a pair shares its moment."""
    if len(old) != len(new) or not old:
        raise ValueError(f"{len(old)} samples of OLD and {len(new)} of NEW are no pairs")
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    dice = random.Random(SEED)
    medians = sorted(median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - COVERAGE) / 2)
    low, high = medians[tail], medians[-1 - tail]
    return Ratio(round(median(ratios), 4), round(low, 4), round(high, 4))
