"""Records of which columns are looked up in tables: read behind the first linear layer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from overhear.attacks.exact.stages import count_proven
from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.problem.columns import Columns, columns_of
from overhear.attacks.problem.objective import preset_of
from overhear.attacks.problem.observation import Observation

SIZES = (7, 0, 5, 0, 0, 0)


class Shop(nn.Module):
    """Categories among numbers, whole numbers alone, or several in one table."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, *, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        looked = [n for n in sizes if n]
        self.at = [j for j, n in enumerate(sizes) if n]
        self.rest = [j for j, n in enumerate(sizes) if not n]
        rows = [sum(looked)] if shared else looked
        self.tables = nn.ModuleList(nn.Embedding(n, 4, padding_idx=0) for n in rows)
        self.first = [sum(looked[:k]) if shared else 0 for k in range(len(looked))]
        self.head = nn.Sequential(
            nn.Linear(4 * len(looked) + len(self.rest), 32), nn.ReLU(), nn.Linear(32, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        codes = [
            self.tables[k % len(self.tables)](x[:, j].long() + self.first[k])
            for k, j in enumerate(self.at)
        ]
        return self.head(torch.cat([*codes, x[:, self.rest]], dim=1))


def _records(sizes: tuple[int, ...], count: int) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    columns = [
        torch.randint(n, (count,), generator=draw).float()
        if n
        else torch.rand(count, generator=draw)
        for n in sizes
    ]
    return torch.stack(columns, dim=1)


PRESET = replace(preset_of("matched", 1), adam_steps=5, newton_steps=1)  # for algebra alone


def _attack(
    model: nn.Module, records: Tensor, high: Tensor, *, hidden: str = "none"
) -> Reconstruction:
    point = list(model.parameters())
    labels = torch.arange(len(records)) % 3
    functional.cross_entropy(model(records), labels).backward()
    for p in point:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    made = [p.grad * (not name.startswith(hidden)) for name, p in model.named_parameters()]
    flat, at = (torch.cat([v.detach().flatten() for v in of]) for of in (made, point))
    seen = Observation.single(
        gradient=flat, model=at, noise_std=0.0, clip_norm=None, records=len(records)
    )
    return reconstruct(
        seen, model, preset=PRESET, input_shape=records.shape[1:], classes=3,
        bounds=(torch.zeros_like(high), high), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "shared", "count"),
    [(SIZES, False, 1), (SIZES, False, 3), (SIZES, True, 2), ((7, 5, 11, 3), False, 2)],
)
def test_categories_and_numbers_are_read_by_algebra(sizes, shared, count):
    model, high = (
        Shop(sizes, shared=shared),
        torch.tensor([float(n - 1) if n else 1.0 for n in sizes]),
    )
    records = _records(sizes, count)
    records[0, 0] = 0  # of a padding row, which has no gradient
    found = _attack(model, records, high)
    assert count_proven([found.stage] * count) == count
    assert float(torch.cdist(records.double(), found.inputs.double()).amin(dim=1).max()) < 1e-4


class Wide(Shop):
    """Numbers also go past, into a layer of their own, which may be called before."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.wide, self.before = nn.Linear(4, 3), before

    def forward(self, x: Tensor) -> Tensor:
        first = self.wide(x[:, self.rest]) if self.before else 0
        return super().forward(x) + (first if self.before else self.wide(x[:, self.rest]))


@pytest.mark.parametrize("before", [True, False])
def test_what_goes_past_the_layer_is_read_off_it(before):
    records = _records(SIZES, 2)
    found = _attack(Wide(before=before), records, torch.tensor([6.0, 1, 4, 1, 1, 1]))
    assert count_proven([found.stage] * 2) == 2
    assert float(torch.cdist(records.double(), found.inputs.double()).amin(dim=1).max()) < 1e-4


def test_categories_of_one_code_are_not_told_apart():
    model = Shop()
    with torch.no_grad():
        model.tables[0].weight[2] = model.tables[0].weight[3]
    records = _records(SIZES, 2)
    records[:, 0] = torch.tensor([2.0, 3.0])  # both rows have a gradient
    found = _attack(model, records, torch.tensor([6.0, 1, 4, 1, 1, 1]))
    assert found.stage == "optimisation"
    assert not any(found.supported)


class Front(Shop):
    """The same, of columns that are changed before."""

    def __init__(self, front: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.front = front

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.front(x))


def _with(x: Tensor, first: Tensor) -> Tensor:
    return torch.cat([first[:, None], x[:, 1:]], dim=1)


def _checked(x: Tensor) -> Tensor:
    assert x.dtype == torch.long
    return x


@pytest.mark.parametrize(
    ("front", "sizes"),
    [
        (lambda x: x, SIZES),
        (lambda x: torch.cat([x[:, :3], x[:, 3:].clamp(-2, 2)], dim=1), None),  # within -3 to 3
        (lambda x: _with(x, x[:, 0] % 7), None),
        (lambda x: _with(x, x[:, 0].clamp(max=6)), None),
        (lambda x: torch.cat([x[:, :1], x[:, :1], x[:, 2:]], dim=1), None),  # seen as a number, too
        (_checked, SIZES),
    ],
)
def test_columns_are_those_that_a_network_takes_as_they_are(front, sizes):
    low, high = torch.full((6,), -3.0), torch.full((6,), 3.0)
    found = columns_of(Front(front), (6,), bounds=(low, high))
    assert (found.sizes if isinstance(found, Columns) else None) == sizes


def test_a_table_that_is_tied_or_alone_is_none_of_columns():
    model = Shop()
    model.tables[1] = model.tables[0]
    assert columns_of(model, (6,)) is None
    text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3))
    assert columns_of(text, (6,)) is None


def test_a_table_that_is_not_trained_tells_of_no_category():
    model, records = Shop(), _records(SIZES, 1)
    flat = _attack(model, records, torch.tensor([6.0, 1, 4, 1, 1, 1]), hidden="tables")
    assert count_proven([flat.stage]) == 1
    assert float((flat.inputs - records).abs().max()) < 1e-4


class Summed(Shop):
    """Rows of two tables add up, and one of them may go past, or a number be added to both."""

    def __init__(self, also: str = "") -> None:
        super().__init__((7, 5, 0))
        self.also, self.past = also, nn.Embedding(7, 3) if also == "past" else None
        self.head = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        codes = self.tables[0](x[:, 0].long()) + self.tables[1](x[:, 1].long())
        codes = codes + x[:, 2:] if self.also == "number" else codes
        made = self.head(torch.cat([codes, x[:, 2:]], dim=1))
        return made if self.past is None else made + self.past(x[:, 0].long())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_categories_whose_rows_add_up_are_the_nearest_sum(count):
    records = _records((7, 5, 0), count)
    found = _attack(Summed(), records, torch.tensor([6.0, 4, 1]))
    assert count_proven([found.stage] * count) == count
    assert float(torch.cdist(records.double(), found.inputs.double()).amin(dim=1).max()) < 1e-4


@pytest.mark.parametrize("also", ["number", "past"])
def test_sums_that_a_number_joins_or_a_part_of_which_goes_past_are_read_of_one_record(also):
    high, one = torch.tensor([6.0, 4, 1]), torch.tensor([[3, 2, 0.25]])
    found = _attack(Summed(also), one, high)
    assert found.supported == (True,)
    torch.testing.assert_close(found.inputs, one, rtol=0, atol=1e-3)
    several = _attack(Summed(also), _records((7, 5, 0), 2), high)
    assert several.stage == "prior"
    assert "no search was made" in several.reason


class Deep(nn.Module):
    """Rows that are also multiplied with each other, added to the outputs, or attended to."""

    def __init__(self, kind: str, *, numbers: int) -> None:
        super().__init__()
        self.kind, self.numbers = kind, numbers
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (7, 12, 5))
        self.wide = nn.ModuleList(nn.Embedding(n, 3) for n in (7, 12, 5))
        self.past = nn.Linear(numbers, 3) if kind == "wide" else None
        self.lift = nn.Sequential(nn.Linear(numbers or 1, 16), nn.ReLU(), nn.Linear(16, 6))
        wide = {"products": 6 + 6, "rows": 6}.get(kind, 18 + numbers)
        self.head = nn.Sequential(nn.Linear(wide, 48), nn.ReLU(), nn.Linear(48, 3))

    def forward(self, x: Tensor) -> Tensor:
        numbers, at = x[:, : self.numbers], x[:, self.numbers :].long()
        rows = torch.stack([table(at[:, k]) for k, table in enumerate(self.tables)], dim=1)
        if self.kind == "rows":
            return self.head(rows.prod(dim=1))
        if self.kind == "products":
            every = torch.cat([self.lift(numbers)[:, None], rows], dim=1)
            one, two = torch.tril_indices(4, 4, -1)
            return self.head(torch.cat([every[:, 0], (every @ every.mT)[:, one, two]], dim=1))
        made = self.head(torch.cat([numbers, rows.flatten(1)], dim=1))
        if self.kind == "factors":
            made = made + (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True) / 2
        past = self.past(numbers) if self.past else 0
        return made + past + sum(table(at[:, k]) for k, table in enumerate(self.wide))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "numbers"), [("wide", 4), ("factors", 4), ("products", 4), ("factors", 0), ("rows", 0)]
)
def test_of_one_record_categories_are_the_rows_that_have_a_gradient(kind, numbers, seed):
    torch.manual_seed(seed)
    tops = torch.tensor([1.0] * numbers + [6, 11, 4])
    record = torch.cat([torch.rand(numbers), (torch.rand(3) * (tops[-3:] + 1)).floor()])[None]
    found = _attack(Deep(kind, numbers=numbers), record, tops)
    assert found.supported == (True,)
    assert count_proven([found.stage]) == 1
    assert found.stage == "exact" or seed != 1  # of others two near it leave little
    torch.testing.assert_close(found.inputs, record, rtol=0, atol=1e-4)


def test_categories_of_which_two_have_one_sum_are_not_told_apart():
    model = Summed()
    weights = [table.weight for table in model.tables]
    with torch.no_grad():
        weights[1][:] = weights[0][:5]  # 2 and 3 are 3 and 2
    found = _attack(model, torch.tensor([[2, 3, 0.5], [3, 2, 0.1]]), torch.tensor([6.0, 4, 1]))
    assert not count_proven([found.stage] * 2)


class _By(nn.Module):
    def __init__(self, front: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.front = front

    def forward(self, x: Tensor) -> Tensor:
        return self.front(x)


@pytest.mark.parametrize(
    ("front", "width", "count"),
    [
        (_By(lambda x: (x - 0.3) / 0.35), 36, 3),
        (nn.BatchNorm2d(1).eval(), 36, 3),  # whose own parameters are before that layer
        (_By(lambda x: functional.pad(x.flip(2), (1, 1, 0, 0))), 48, 3),
        (_By(torch.tanh), 36, 0),
        (_By(lambda x: torch.where(x == 0, 0.5, x) - 0.4), 36, 0),  # at the end of the range
        (_By(lambda x: torch.where((x > 0.2) & (x < 0.3), 0.25, x) - 0.4), 36, 0),
        (_By(lambda x: x - x.mean(0)), 36, 0),  # of the batch
        (_By(lambda x: 1 + 1e-6 * x), 36, 0),  # whose rounding hides the record
        (nn.BatchNorm2d(1, track_running_stats=False), 36, 0),
        (_By(lambda x: (2 * x).clamp(-4, 4)), 36, 0),
        (_By(lambda x: x - x.mean(dim=(1, 2, 3), keepdim=True)), 36, 0),
        (_By(lambda x: x / x.amax(dim=(1, 2, 3), keepdim=True)), 36, 0),
        (_By(lambda x: torch.where(x == 0.5, 0.0, x)), 36, 0),  # a code for one value
        (_By(lambda x: x * (1 + (x.amax(dim=(1, 2, 3), keepdim=True) < 0.5))), 36, 0),  # dark ones
        (_By(lambda x: torch.cat([1e3 * x[:, :, 1:], 0.01 * x[:, :, :1].round()], 2)), 36, 0),
        (nn.Dropout(0.3), 36, 0),  # which drops numbers where the gradient is taken
    ],
)
@pytest.mark.parametrize("of", [3, 1])
def test_records_are_read_behind_what_is_done_to_each_number(front, width, count, of):
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 3))
    if of == 1:  # behind a convolution, too, here in a model that holds the layers
        head = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.Flatten())
        head = _By(head.append(nn.Linear(8 * width, 3)))
    records = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))[:of]
    found = _attack(nn.Sequential(front, head).eval(), records, torch.tensor(1.0))
    assert count_proven([found.stage] * of) == min(count, of)
    far = torch.cdist(records.flatten(1), found.inputs.flatten(1)).amin(dim=1).max()
    assert not count or float(far) < 1e-4


@pytest.mark.parametrize("again", [False, True])
def test_records_of_a_network_with_checkpointed_parts_are_read(again):
    class Kept(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=again)

    torch.manual_seed(0)
    layers = nn.Linear(36, 64), nn.ReLU(), Kept(nn.Linear(64, 16), nn.Tanh()), nn.Linear(16, 3)
    records = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    found = _attack(nn.Sequential(nn.Flatten(), *layers), records, torch.tensor(1.0))
    assert count_proven([found.stage] * 3) == 3


class Based(nn.Module):
    """A row of the table is taken whatever the record is, and its own may have no gradient."""

    def __init__(self, *, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.table = nn.Embedding(8, 6, padding_idx=None if gated else 0)
        self.head = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 3))

    def forward(self, x: Tensor) -> Tensor:
        row = self.table(x[:, 0].long()) * (x[:, 1:2] if self.gated else 1)
        return self.head(torch.cat([row + self.table.weight[5], x[:, 1:]], dim=1))


@pytest.mark.parametrize("gated", [True, False])
def test_a_row_that_is_always_taken_is_no_category_of_the_record(gated):
    torch.manual_seed(0)
    record = torch.tensor([[7.0, 0.0, 0.4, 0.9]]) if gated else torch.tensor([[0, 0.3, 0.4, 0.9]])
    found = _attack(Based(gated=gated), record, torch.tensor([7.0, 1, 1, 1]))
    assert count_proven([found.stage]) * sum(found.supported) == 0
