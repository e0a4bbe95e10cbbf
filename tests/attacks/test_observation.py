import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.observation import Observation, observe, sent_gradient


def _network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
    return model, torch.cat([p.detach().flatten() for p in model.parameters()])


def _batch(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(count, 1, 3, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(count) % 3


def _by_backward(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_without_a_defence_the_observation_is_the_mean_gradient() -> None:
    (model, flat), (inputs, targets) = _network(), _batch(4)
    seen = observe(
        model, flat, inputs=inputs, targets=targets, clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    torch.testing.assert_close(seen.gradient, _by_backward(model, inputs, targets))


def test_each_record_is_clipped_before_the_mean() -> None:
    (model, flat), (inputs, targets) = _network(), _batch(4)
    rows = [_by_backward(model, x[None], y[None]) for x, y in zip(inputs, targets, strict=True)]
    bound = float(torch.stack([row.norm() for row in rows]).median())  # clips some, not all
    expected = torch.stack([row * min(1.0, bound / float(row.norm())) for row in rows]).mean(dim=0)
    sent = sent_gradient(model, flat, inputs=inputs, targets=targets, clip_norm=bound)
    torch.testing.assert_close(sent, expected)


def test_a_loose_clip_changes_nothing() -> None:
    (model, flat), (inputs, targets) = _network(), _batch(4)
    loose = sent_gradient(model, flat, inputs=inputs, targets=targets, clip_norm=1e6)
    plain = sent_gradient(model, flat, inputs=inputs, targets=targets, clip_norm=None)
    torch.testing.assert_close(loose, plain)


def test_one_hot_probabilities_are_class_indices() -> None:
    (model, flat), (inputs, targets) = _network(), _batch(3)
    soft = nn.functional.one_hot(targets, 3).double()
    by_class = sent_gradient(model, flat, inputs=inputs, targets=targets, clip_norm=0.1)
    by_share = sent_gradient(model, flat, inputs=inputs, targets=soft, clip_norm=0.1)
    torch.testing.assert_close(by_class, by_share)


def test_the_clipped_gradient_is_differentiable_in_the_batch() -> None:
    (model, flat), (inputs, targets) = _network(), _batch(2)

    def sent(x: Tensor) -> Tensor:
        return sent_gradient(model, flat, inputs=x, targets=targets, clip_norm=0.5)

    assert torch.autograd.gradcheck(sent, inputs.requires_grad_())


def test_noise_has_the_declared_standard_deviation() -> None:
    model = nn.Linear(999, 10).double()
    flat = torch.zeros(10_000, dtype=torch.float64)
    seen = observe(
        model, flat, inputs=torch.zeros(1, 999, dtype=torch.float64), targets=torch.tensor([0]),
        clip_norm=1.0, noise_std=0.3, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    # n = 9990 weights whose gradient is 0; 5 standard errors: false alarms below 1e-6.
    assert float(seen.gradient[:9990].std()) == pytest.approx(0.3, abs=5 * 0.3 / (2 * 9990) ** 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_std": -1.0}, "noise_std=-1.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"records": 0}, "records=0"),
        ({"model": torch.zeros(3)}, r"must both be \(D,\)"),
        ({"gradient": torch.full((2,), torch.nan)}, "finite"),
    ],
)
def test_impossible_observations_are_refused(changes: dict[str, object], message: str) -> None:
    facts: dict[str, object] = {
        "gradient": torch.zeros(2), "model": torch.zeros(2), "noise_std": 0.0, "clip_norm": None,
        "records": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Observation(**{**facts, **changes})  # type: ignore[arg-type] # a table of bad values
