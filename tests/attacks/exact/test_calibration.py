"""Every stage before what it must not call a record, and before one that it must: one table.

Of each network a record's gradient is changed so that no record made it: noise in its place, its
rows in another order, numbers of a tensor times three, two records declared as one. Whatever stage
answers must not prove a record then; and each stage of `STAGES` must find its own record, so that
none can be added without a row here.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.stages import STAGES, Proof, Stage, proof_of, solve_exactly
from overhear.attacks.inversion.fallback import fall_back
from overhear.attacks.problem.labels import recognised
from overhear.attacks.problem.observation import Observation, Sent, sent_gradient
from overhear.attacks.problem.problem import Box, Certified, Found, Problem
from overhear.training.models.parameters import flatten, unflatten
from tests.attacks.active.test_crafted import seen_by
from tests.attacks.exact.test_attended import SMALL
from tests.attacks.exact.test_censored import _digit, _saturated
from tests.attacks.exact.test_patches import Vision

WORLD = tuple[Problem, Tensor]  # what is observed, and the records (B, *shape) behind it
SEEDS = 4
HEAVY = ("patches", "patches at their places")  # of one seed
ALPHA = 0.05


def _world(
    model: nn.Module, shape: tuple[int, ...], classes: int, *, seed: int, records: int = 1,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None, noise_std: float = 0.0,
    image: Tensor | None = None,
) -> WORLD:  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    model = model.double()
    x = torch.rand(records, *shape, generator=draw, dtype=torch.float64) if image is None else image
    y = torch.arange(records) % classes
    point = flatten(model).detach()
    if loss is None:
        sent = sent_gradient(model, point, inputs=x, targets=y, of=Sent(clip_norm=None)).detach()
    else:
        made = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
        sent = torch.cat([g.flatten() for g in made])
    noise = torch.randn(sent.shape, generator=draw, dtype=torch.float64)
    seen = Observation.single(
        gradient=sent + noise_std * noise, model=point, noise_std=noise_std, clip_norm=None,
        records=records,
    )  # fmt: skip
    box = Box(low=torch.zeros(()).double(), span=torch.ones(()).double())
    problem = Problem(
        observation=seen, model=model, box=box, shape=shape, classes=classes,
        labels=y if classes > 1 else None, prior_image=torch.full(shape, 0.5).double(),
    )  # fmt: skip
    return problem, x


def _mlp(hidden: int, classes: int, *, inputs: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _vision(seed: int, **settings: object) -> WORLD:
    model = Vision(**settings).requires_grad_(True)
    return _world(model, (3, 8, 8), 5, seed=seed)


def _momentum(seed: int) -> WORLD:
    """Gradients of one record at two models, added up."""
    problem, x = _world(_mlp(12, 3), (8,), 3, seed=seed)
    seen = problem.observation
    moved = seen.points[0, 0] - 0.5 * seen.gradient[0]
    again = sent_gradient(
        problem.model, moved, inputs=x, targets=torch.tensor([0]), of=Sent(clip_norm=None)
    ).detach()
    return replace(problem, observation=replace(seen, gradient=seen.gradient + again)), x


def _signed(seed: int) -> WORLD:
    x = torch.rand(1, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    problem, _ = _world(_mlp(12, 3), (8,), 3, seed=seed, image=x * (x > 0.5))
    seen = problem.observation
    return replace(problem, observation=replace(seen, gradient=seen.gradient.sign())), x * (x > 0.5)


def _imprinted(seed: int) -> WORLD:
    seen, sent, x, _ = seen_by(_picture_mlp(), 2, clip_norm=None, seed=seed)
    model, box = (
        _picture_mlp().double(),
        Box(low=torch.zeros(()).double(), span=torch.ones(()).double()),
    )
    return Problem(
        observation=seen, model=model, box=box, shape=(1, 8, 8), classes=4, imprints=tuple(sent)
    ), x


def _picture_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 4))


def _convolution() -> nn.Module:
    layers = nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3)
    return nn.Sequential(*layers)


WORLDS: dict[str, Callable[[int], WORLD]] = {
    "first layer": lambda seed: _world(_mlp(12, 3), (8,), 3, seed=seed, noise_std=1e-3),
    "exact": lambda seed: _world(
        _mlp(12, 3), (8,), 3, seed=seed, loss=lambda z, _: (z - 1).square().sum()
    ),
    "rank one": _momentum,
    "imprint": _imprinted,
    "patches": lambda seed: _vision(seed, patch=2, side=8, width=40),
    "patches at their places": lambda seed: _vision(seed, **SMALL),
    "peeling": lambda seed: _world(_convolution(), (1, 6, 6), 3, seed=seed),
    "censored": lambda seed: _world(
        _saturated(), (1, 8, 8), 10, seed=seed, image=_digit(seed)[None]
    ),
    "certified": lambda seed: _world(_mlp(40, 4), (8,), 4, seed=seed, records=2),
    "one direction": lambda seed: _world(
        nn.Linear(8, 1), (8,), 1, seed=seed, loss=lambda z, _: (z - 3).square().sum()
    ),
}


WORLDS["signs"] = _signed


def _noise(problem: Problem, seed: int) -> Tensor:
    """Noise in place of each tensor, of its size."""
    draw = torch.Generator().manual_seed(1000 + seed)
    g = problem.observation.gradient
    parts = unflatten(problem.model, g).values()
    made = [
        torch.randn(p.shape, generator=draw, dtype=g.dtype) * p.square().mean().sqrt()
        for p in parts
    ]
    return torch.cat([m.flatten(1) for m in made], dim=1)


def _rows(problem: Problem, seed: int) -> Tensor:
    """The rows of each tensor in an order of its own, as of units that were sorted elsewhere."""
    draw = torch.Generator().manual_seed(2000 + seed)
    parts = unflatten(problem.model, problem.observation.gradient).values()
    turned = [p[:, torch.randperm(p.shape[1], generator=draw)] for p in parts]
    return torch.cat([t.flatten(1) for t in turned], dim=1)


def _two(problem: Problem, seed: int) -> Tensor:
    """The mean of two records' gradients where one is declared."""
    draw = torch.Generator().manual_seed(3000 + seed)
    seen, count = problem.observation, problem.observation.records + 1
    x = torch.rand(count, *problem.shape, generator=draw, dtype=torch.float64)
    y = torch.arange(count) % problem.classes
    rows = [
        sent_gradient(problem.model, p, inputs=x, targets=y, of=Sent(clip_norm=None)).detach()
        for p in seen.points
    ]
    return torch.stack(rows)


NULLS = {"noise": _noise, "rows": _rows, "two": _two}


def _answers(problem: Problem, *, proof: bool) -> bool:
    """Whether a record is said to be shown; without `proof`, whether one is found at all."""
    found = solve_exactly(problem, torch.Generator().manual_seed(0))
    if isinstance(found, Found) and problem.observation.is_noisy:
        kept = fall_back(problem, found, torch.Generator(), search=lambda _: found, held=False)
        return kept.supported[0]
    return isinstance(found, Found) and not (proof and proof_of(found.stage) is Proof.NOTHING)


def _false(
    world: Callable[[int], WORLD], null: Callable[[Problem, int], Tensor], *, seeds: int = SEEDS
) -> int:
    """How often what no record made is called one."""
    count = 0
    for seed in range(seeds):
        torch.manual_seed(seed)
        problem, _ = world(seed)
        seen = problem.observation
        noise = 0.0
        if seen.is_noisy:
            draw = torch.Generator().manual_seed(seed)
            noise = 10 * torch.randn(seen.gradient.shape, generator=draw, dtype=torch.float64)
            seen = replace(seen, covariance=torch.full((1, 1), 100.0, dtype=torch.float64))
        changed = replace(seen, gradient=null(problem, seed) + noise)
        count += _answers(replace(problem, observation=changed), proof=null is not _noise)
    return count


def _deep(seed: int) -> WORLD:
    """Sigmoids that hide of the whole gradient what two records leave of the first layer's."""
    sides = (8, 16, 16, 16, 3)
    pairs = [(nn.Linear(*at), nn.Sigmoid()) for at in itertools.pairwise(sides)]
    return _world(nn.Sequential(*list(itertools.chain(*pairs))[:-1]), (8,), 3, seed=seed)


def _one_label(problem: Problem, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(3000 + seed)
    x, y = torch.rand(2, 8, generator=draw, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    point, of = problem.observation.points[0, 0], Sent(clip_norm=None)
    return sent_gradient(problem.model, point, inputs=x, targets=y, of=of).detach()[None]


@pytest.mark.parametrize(("factor", "classes", "labelled"), [(-1, 2, False), (0.5, 4, True)])
def test_of_two_classes_another_loss_tells_no_label(factor, classes, labelled):
    torch.manual_seed(0)
    problem, x = _world(
        _mlp(80, classes), (8,), classes, seed=0,
        loss=lambda z, y: factor * nn.functional.cross_entropy(z, y),
    )  # fmt: skip
    found = solve_exactly(problem, torch.Generator().manual_seed(0))
    assert isinstance(found, Found)
    assert found.loss is not None
    assert (found.stage, found.loss.labelled) == ("exact", labelled)
    assert (found.loss.factors is not None) is labelled
    assert float((found.pixels - x).abs().max()) < 1e-6


CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda g, _: g,
    "half": lambda g, _: g.half().double(),
    "bfloat16": lambda g, _: g.bfloat16().double(),
    "int8": lambda g, _: (g * 127 / g.abs().max()).round() * g.abs().max() / 127,
    "decay": lambda g, at: g + 0.01 * at,
    "top": lambda g, _: g * (g.abs() >= g.abs().flatten().quantile(0.7)),
    "cut": lambda g, _: g.clamp(*(s * g.abs().flatten().quantile(0.7) for s in (-1, 1))),
}
NETWORKS = {"relu": lambda seed: _world(_mlp(12, 3), (8,), 3, seed=seed), "deep": _deep}


def _changed(problem: Problem, g: Tensor, change: str) -> Problem:
    at = problem.observation.points[:, 0]
    seen = replace(problem.observation, gradient=CHANGES[change](g, at))
    return replace(problem, observation=recognised(seen, problem.model, classes=3)[0])


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("network", NETWORKS)
def test_of_a_changed_gradient_one_record_is_told_from_two_and_from_noise(network, change):
    right = 0
    for seed in range(6):
        torch.manual_seed(seed)
        problem, x = NETWORKS[network](seed)
        for null in (_noise, _two, _one_label):
            assert not _answers(_changed(problem, null(problem, seed), change), proof=True)
        one = _changed(problem, problem.observation.gradient, change)
        found = solve_exactly(one, torch.Generator().manual_seed(0))
        if isinstance(found, Found) and proof_of(found.stage) is Proof.RECORD:
            right += 1
            assert float((found.pixels - x).square().mean()) < 0.02
    assert right >= 4 * (network == "relu" and change in ("half", "bfloat16", "decay"))


def _two_halves() -> nn.Module:
    """Units that look at one half of a record each, and are at 0 where that is."""
    model = _mlp(24, 3, inputs=24)
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].weight[:12, 12:] = model[0].weight[12:, :12] = 0
        model[0].bias.fill_(-0.02)
    return model


def _halves(records: int) -> Tensor:
    halves = torch.block_diag(0.4 + 0.6 * torch.rand(1, 12), 0.4 + 0.6 * torch.rand(1, 12))
    return halves if records == 2 else halves.sum(dim=0, keepdim=True)


def _two_outputs(size: float) -> nn.Module:
    model = nn.Linear(64, 2)
    nn.init.uniform_(model.weight, -size, size)
    return model


PAIRS: dict[str, tuple[Callable[[], nn.Module], int, float, torch.dtype, bool]] = {
    "two outputs, a tenth": (lambda: nn.Linear(64, 2), 2, 0.1, torch.bfloat16, True),
    "two outputs, zeros": (lambda: _two_outputs(0.0), 2, 1.0, torch.float32, True),
    "two outputs, small": (lambda: _two_outputs(0.0125), 2, 1.0, torch.float32, True),
    "two outputs": (lambda: _two_outputs(0.125), 2, 1.0, torch.float32, True),
    "two outputs, weights": (lambda: nn.Linear(64, 2, bias=False), 2, 1.0, torch.float32, True),
    "two outputs, no bias": (lambda: nn.Linear(64, 2), 2, 1.0, torch.bfloat16, False),
    "no biases, one label": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 3)),
        3, 1.0, torch.bfloat16, False,
    ),
    "no biases, relu": (lambda: _mlp(32, 3, inputs=16), 3, 1.0, torch.bfloat16, False),
    "parallel rows": (lambda: _mlp(64, 3, inputs=16), 3, 0.1, torch.bfloat16, True),
    "disjoint rows": (_two_halves, 3, 0.5, torch.float32, True),
}  # fmt: skip


def _proven(name: str, *, records: int, seed: int) -> bool:
    """Whether a record is proven of the mean of some that are declared as one."""
    build, classes, share, kind, biased = PAIRS[name]
    torch.manual_seed(seed)
    model = build()
    size = next(model.parameters()).shape[1]
    x = _halves(records) if name == "disjoint rows" else torch.rand(records, size)
    y = torch.randint(classes, (1,)).expand(records)
    if name == "two outputs, no bias":
        y = torch.arange(records) % classes
    point = flatten(model).detach()
    g = sent_gradient(model, point, inputs=x, targets=y, of=Sent(clip_norm=None)).detach()[None]
    parts = unflatten(model, g * (g.abs() >= g.abs().flatten().quantile(1 - share)))
    told = [p if biased or p.ndim == 3 else 0 * p for p in parts.values()]
    g = torch.cat([p.flatten(1).to(kind).float() for p in told], dim=1)
    seen = Observation.single(gradient=g[0], model=point, noise_std=0.0, clip_norm=None, records=1)
    held = torch.cat([torch.full_like(t.flatten(1), float(t.any())) for t in told], dim=1)[0] > 0
    seen = replace(seen, shown=None if biased else held)
    box = Box(low=torch.zeros(()), span=torch.ones(()))
    problem = Problem(
        observation=recognised(seen, model, classes=classes)[0], model=model, box=box,
        shape=(size,), classes=classes,
    )  # fmt: skip
    return _answers(problem, proof=True)


@pytest.mark.parametrize("name", PAIRS)
def test_two_records_are_not_one_where_what_is_shown_has_rank_one(name):
    seeds = range(1, 3) if "bias" in name else range(20)  # of the slow search for a length
    # By one number alone: of 1,000 other seeds 72 and 10 are false; more fail by chance in 1.2 %.
    most = {"two outputs, small": 4, "two outputs": 2}.get(name, 0)
    assert sum(_proven(name, records=2, seed=seed) for seed in seeds) <= most


@pytest.mark.parametrize("name", ["disjoint rows", "no biases, relu", "two outputs"])
def test_one_record_is_one_where_what_is_shown_tells_it_from_two(name):
    assert sum(_proven(name, records=1, seed=seed) for seed in range(3)) >= 2


def _squared(z: Tensor, y: Tensor) -> Tensor:
    return (
        (z - torch.randn(z.shape, generator=torch.Generator().manual_seed(len(z)))).square().sum()
    )


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("null", [*NULLS, "none"])
def test_a_batch_is_certified_under_another_loss_where_a_batch_sent_it(null, classes):
    def world(seed: int) -> WORLD:
        return _world(_mlp(40, classes), (8,), classes, seed=seed, records=3, loss=_squared)

    if null != "none":
        assert _false(world, NULLS[null]) == 0
        return
    torch.manual_seed(0)
    problem, x = world(0)
    found = solve_exactly(problem, torch.Generator().manual_seed(0))
    assert isinstance(found, Found)
    assert found.stage == "certified"
    assert float(torch.cdist(found.pixels, x).amin(dim=1).max()) < 1e-6


@pytest.mark.slow
def test_of_few_units_and_many_outputs_no_mixture_of_two_records_is_certified():
    """Any derivative fits so few units; of 1,000 problems 300 are certified, none falsely."""
    certified = 0
    for seed in range(60):
        torch.manual_seed(seed)
        first = torch.rand(1, 6, dtype=torch.float64)
        x = torch.cat([first, first + 0.3 * torch.randn(1, 6)]).clamp(0, 1)
        problem, _ = _world(
            _mlp(4 + seed % 5, 12, inputs=6), (6,), 12, seed=seed, records=2, loss=_squared, image=x
        )
        found = solve_exactly(problem, torch.Generator().manual_seed(0))
        if isinstance(found, Found) and found.stage == "certified":
            certified += 1
            assert float(torch.cdist(found.pixels, x).amin(dim=1).max()) < 1e-3
    assert certified >= 6


def test_a_mean_of_two_binary_records_of_one_label_is_no_record():
    """Of two classes both have one direction, and the mean is nearly two of itself."""
    image = torch.rand(2, 36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seed in range(20):
        torch.manual_seed(seed)
        problem, _ = _world(
            nn.Linear(36, 2), (36,), 2, seed=seed, records=2, image=image.roll(seed, 1).round(),
            loss=lambda z, y: nn.functional.cross_entropy(z, 0 * y),
        )  # fmt: skip
        assert not _answers(problem, proof=True)


def test_every_stage_has_a_row():
    assert set(WORLDS) == {stage.name for stage in STAGES}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_stage_finds_its_own_record(name):
    torch.manual_seed(0)
    problem, x = WORLDS[name](0)
    stages = [stage for stage in STAGES if stage.name == name]
    found = [stage.solve(problem, torch.Generator().manual_seed(0)) for stage in stages]
    [one] = [of for of in found if isinstance(of, Certified)]
    near = torch.cdist(one.inputs.flatten(1).double(), x.flatten(1).double()).amin(dim=0)
    far = {"first layer": 0.5, "signs": 1.5}  # under noise, and without sizes
    assert float(near.max()) < far.get(name, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("name", WORLDS)
def test_what_no_record_made_is_no_record(name, null):
    seeds = 1 if name in HEAVY else SEEDS
    assert _false(WORLDS[name], NULLS[null], seeds=seeds) <= ALPHA * seeds


@pytest.mark.slow
def test_a_stage_that_proves_too_much_is_seen(monkeypatch):
    def guess(problem: Problem, _: torch.Generator) -> Certified:
        shape = (problem.observation.records, *problem.shape)
        return Certified(torch.full(shape, 0.5).double(), torch.zeros(shape[0], dtype=torch.int64))

    planted = (Stage(name="exact", solve=guess, several=None),)
    monkeypatch.setattr("overhear.attacks.exact.stages.STAGES", planted)
    for null in NULLS.values():
        assert _false(WORLDS["exact"], null) > ALPHA * SEEDS
