"""Without noise: what is told as rebuilt explains the gradient far better than the blind guess."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from overhear.attacks.inversion.fallback import _distance_without, fall_back
from overhear.attacks.inversion.inversion import Reconstruction, _of_class, reconstruct
from overhear.attacks.inversion.optimisation import optimise
from overhear.attacks.posterior import Candidates
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.attacks.problem.problem import Found, Problem, build_box
from overhear.training.models.parameters import flatten
from overhear.training.models.tasks import AreaUnderCurve, with_centres

SHAPE, CLASSES = (8,), 3
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
SHORT = replace(PRESETS["matched"], exact=False, adam_steps=40, newton_steps=0, starts=1)


class HalfBlind(nn.Module):
    """Looks at the first half of its inputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) logits."""
        found: Tensor = self.layers(x[:, :4])
        return found


def network(*, half_blind: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if half_blind:
            return HalfBlind()
        return nn.Sequential(nn.Linear(8, 6), nn.Sigmoid(), nn.Linear(6, CLASSES))


def seen_of(model: nn.Module, x: Tensor, label: int) -> Observation:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return observe(
        model, flat, inputs=x, targets=torch.tensor([label]), clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip


def problem_of(model: nn.Module, seen: Observation, prior: Tensor) -> Problem:
    return Problem(
        observation=seen, model=model, preset=SHORT, shape=SHAPE, classes=CLASSES, labels=None,
        box=build_box(BOUNDS, SHAPE, dtype=torch.float32), prior_image=prior,
    )  # fmt: skip


def kept(problem: Problem, pixels: Tensor, label: int, *, stage: str = "optimisation") -> bool:
    found = Found(pixels=pixels, labels=torch.tensor([label]), iterations=0, stage=stage)
    done = fall_back(problem, found, torch.Generator(), search=lambda _: found)
    expected = pixels if done.supported[0] else problem.prior_image
    assert torch.equal(done.pixels[0], torch.as_tensor(expected).reshape(SHAPE))
    return done.supported[0]


def truth() -> Tensor:
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))


def angle(seen: Observation, model: nn.Module, x: Tensor, label: int) -> float:
    sent = sent_gradients(seen, model, inputs=x, targets=torch.tensor([label]))[0]
    return 1 - float(cosine_similarity(sent, seen.gradient[0], dim=0))


@pytest.mark.parametrize(("part", "stays"), [(0.1, True), (0.6, False)])
def test_an_image_that_leaves_more_than_a_fifth_of_what_the_guess_leaves_is_the_guess(part, stays):
    model, x, prior = network(), truth(), torch.full(SHAPE, 0.5)
    seen = seen_of(model, x, 1)
    near = x + part * (prior - x)  # between the truth and the guess: nearer than the guess
    left = angle(seen, model, near, 1) / angle(seen, model, prior[None], 1)
    assert (left < 0.2) is stays
    assert left < 1
    assert kept(problem_of(model, seen, prior), near, 1) is stays
    assert kept(problem_of(model, seen, prior), near, 1, stage="peeling")  # certified by itself


def test_the_guess_is_tried_under_every_label_where_the_last_layer_tells_none():
    model, x = network(), truth()
    seen, prior = seen_of(model, x, 1), x[0] * 0.9
    posed = problem_of(model, seen, prior)
    wrong = Found(pixels=1 - x, labels=torch.tensor([0]), iterations=0, stage="optimisation")
    least = _distance_without(posed, wrong, 0)
    assert least == pytest.approx(angle(seen, model, prior[None], 1), abs=1e-6)
    told = _distance_without(replace(posed, labels=wrong.labels), wrong, 0)
    assert told == pytest.approx(angle(seen, model, prior[None], 0), abs=1e-6)
    assert told > 100 * least


def test_the_right_direction_counts_at_an_unknown_length():
    model, x, prior = network(), truth(), torch.full(SHAPE, 0.5)
    seen = seen_of(model, x, 1)
    assert kept(
        problem_of(model, replace(seen, gradient=seen.gradient * 1e-3), prior), x, 1
    )  # as cosines say


def _search(model: nn.Module, seen: Observation, prior: Tensor) -> Reconstruction:
    return reconstruct(
        seen, model, preset=SHORT, input_shape=SHAPE, classes=CLASSES, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(3), prior_image=prior,
    )  # fmt: skip


def test_what_a_gradient_does_not_show_is_as_in_the_public_image():
    model, x = network(half_blind=True), truth()
    prior = (x[0] + 0.1).clamp(0, 1)
    prior[4:] = torch.tensor([0.1, 0.9, 0.2, 0.8])
    found = _search(model, seen_of(model, x, 1), prior)
    assert found.supported == (True,)
    assert found.inputs[0, 4:].tolist() == pytest.approx(prior[4:].tolist())


def test_a_network_that_normalises_over_places_is_not_searched_from_the_public_image():
    x, prior, counts = truth(), torch.full(SHAPE, 0.5), []
    for norm in (nn.Identity(), nn.GroupNorm(1, 6)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 6), norm, nn.Sigmoid(), nn.Linear(6, CLASSES))
        posed = problem_of(model, seen_of(model, x, 1), prior)
        found = optimise(posed, torch.Generator().manual_seed(0), progress=None)
        counts.append(found.iterations)
    assert counts == [2 * SHORT.adam_steps, SHORT.adam_steps]


def _of_auc(x: Tensor, label: int) -> tuple[nn.Module, Observation]:
    """A linear network whose score is sure: its weights' gradient is small beside that of `a`."""
    base = nn.Linear(8, 2)
    with torch.no_grad():
        base.weight.copy_(torch.stack([torch.full((8,), -0.3), torch.full((8,), 0.3)]))
        base.bias.zero_()
    task, model = AreaUnderCurve(base), with_centres(base)
    point = torch.cat([flatten(base), torch.tensor([0.35, 0.2, -0.4])])
    seen = Observation(
        gradient=torch.zeros(1, 20), points=point[None, None],
        covariance=torch.zeros(1, 1, dtype=torch.float64), clip_norm=None, records=1, task=task,
    )  # fmt: skip
    sent = sent_gradients(seen, model, inputs=x, targets=torch.tensor([label])).detach()
    return model, replace(seen, gradient=sent)


def test_an_image_that_explains_one_large_entry_and_no_weight_is_the_guess():
    x, prior = truth(), torch.full(SHAPE, 0.1)
    model, seen = _of_auc(x, 1)
    posed = replace(problem_of(model, seen, prior), classes=2)
    flat = torch.full((1, 8), float(x.mean()))  # of the same score, and not the picture
    share = angle(seen, model, flat, 1) / angle(seen, model, prior[None], 1)
    assert share < 0.2
    assert kept(posed, x, 1)
    weights = seen.gradient.clone()
    weights[:, :16] = -weights[:, :16]  # the weights say the contrary
    turned = replace(seen, gradient=weights)
    assert not kept(replace(posed, observation=turned), flat, 1)


@pytest.mark.parametrize(("label", "is_mean"), [(1, True), (0, False)])
def test_the_mean_of_a_class_that_explains_less_than_the_guess_is_not_shown(label, is_mean):
    x, prior = truth(), torch.full(SHAPE, 0.5)
    model, seen = _of_auc(x, 1)  # a task, of which no layer tells the label
    posed = replace(problem_of(model, seen, prior), classes=2)
    public = Candidates(inputs=torch.cat([1 - x, 0.9 * x + 0.05]), labels=torch.tensor([0, 1]))
    fallen = Reconstruction(
        inputs=prior[None], labels=torch.tensor([label]), objective=0.0, iterations=0,
        stage="prior", supported=(False,),
    )  # fmt: skip
    shown = _of_class(posed, fallen, public).inputs[0]
    assert torch.equal(shown, public.inputs[label]) is is_mean
    assert torch.equal(shown, prior) is not is_mean
