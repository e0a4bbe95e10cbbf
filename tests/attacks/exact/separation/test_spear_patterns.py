"""Patterns of activity from two linear images that exclude each other."""

import torch
from torch import Tensor

from overhear.attacks.exact.spear_images import activity_patterns


def planted(
    units: int, records: int, *, twins: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(P, N, always, never) in random coordinates, and the records' patterns as `active`."""
    g = torch.Generator().manual_seed(units + records)
    h = torch.randn(units, records, generator=g, dtype=torch.float64)
    if twins:
        h[:, 1] = h[:, 0] * (1 + torch.rand(units, generator=g, dtype=torch.float64))
    a = h.clamp_min(0)
    base = torch.randn(records, records, generator=g, dtype=torch.float64)
    return a @ base, (a - h) @ base, h > 0, a


def solve(units: int, records: int, *, twins: bool = False) -> tuple[set[tuple[bool, ...]], Tensor]:
    p, n, active, _ = planted(units, records, twins=twins)
    found = activity_patterns(
        p, n, always=active.all(dim=1), never=~active.any(dim=1), records=records, noise=1e-15,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return {tuple(row) for row in found.tolist()}, active


def test_half_of_b_squared_units_give_every_pattern():
    patterns, active = solve(60, 8)
    assert patterns == {tuple(column) for column in active.T.tolist()}


def test_twins_do_not_hide_the_other_records():
    patterns, active = solve(80, 5, twins=True)
    assert {tuple(column) for column in active.T.tolist()} <= patterns


def test_too_few_units_give_candidates_and_no_error():
    patterns, _ = solve(6, 6)
    assert all(len(pattern) == 6 for pattern in patterns)


def test_units_without_dispute_give_one_pattern():
    rows = torch.eye(4, dtype=torch.float64)
    always = torch.tensor([True, True, False, False])
    found = activity_patterns(
        rows * always[:, None], rows * ~always[:, None], always=always, never=~always, records=2,
        noise=1e-15, generator=torch.Generator(),
    )  # fmt: skip
    assert found.tolist() == [always.tolist()]
