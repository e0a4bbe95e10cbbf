import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.problem.observation import (
    Observation,
    Sent,
    observe,
    sent_gradient,
    sent_gradients,
)
from overhear.training.models.parameters import build_model, flatten
from overhear.training.models.tasks import ClassWeights


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


def test_without_a_defence_the_observation_is_the_mean_gradient():
    (model, flat), (inputs, targets) = _network(), _batch(4)
    seen = observe(
        model, flat, inputs=inputs, targets=targets, clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    torch.testing.assert_close(seen.gradient[0], _by_backward(model, inputs, targets))


def test_each_record_is_clipped_before_the_mean():
    (model, flat), (inputs, targets) = _network(), _batch(4)
    rows = [_by_backward(model, x[None], y[None]) for x, y in zip(inputs, targets, strict=True)]
    bound = float(torch.stack([row.norm() for row in rows]).median())  # clips some, not all
    expected = torch.stack([row * min(1.0, bound / float(row.norm())) for row in rows]).mean(dim=0)
    sent = sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=bound))
    torch.testing.assert_close(sent, expected)


def test_a_loose_clip_changes_nothing():
    (model, flat), (inputs, targets) = _network(), _batch(4)
    loose = sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=1e6))
    plain = sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=None))
    torch.testing.assert_close(loose, plain)


def test_one_hot_probabilities_are_class_indices():
    (model, flat), (inputs, targets) = _network(), _batch(3)
    soft = nn.functional.one_hot(targets, 3).double()
    by_class = sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=0.1))
    by_share = sent_gradient(model, flat, inputs=inputs, targets=soft, of=Sent(clip_norm=0.1))
    torch.testing.assert_close(by_class, by_share)


def test_the_clipped_gradient_is_differentiable_in_the_batch():
    (model, flat), (inputs, targets) = _network(), _batch(2)

    def sent(x: Tensor) -> Tensor:
        return sent_gradient(model, flat, inputs=x, targets=targets, of=Sent(clip_norm=0.5))

    assert torch.autograd.gradcheck(sent, inputs.requires_grad_())


def test_noise_has_the_declared_standard_deviation():
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
def test_impossible_observations_are_refused(changes, message):
    facts: dict[str, object] = {
        "gradient": torch.zeros(2), "model": torch.zeros(2), "noise_std": 0.0, "clip_norm": None,
        "records": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Observation.single(**{**facts, **changes})  # type: ignore[arg-type] # a table of bad values


def _several(covariance: Tensor, gradient: Tensor) -> Observation:
    return Observation(
        gradient=gradient, points=torch.zeros(len(gradient), 1, gradient.shape[1]),
        covariance=covariance, clip_norm=None, records=1,
    )  # fmt: skip


def test_the_noise_of_several_intercepts_is_that_of_their_best_average():
    independent = _several(torch.diag(torch.tensor([1.0, 4.0])), torch.zeros(2, 3))
    assert independent.noise_std**2 == pytest.approx(1 / (1 + 1 / 4))
    alike = _several(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.zeros(2, 3))
    assert alike.noise_std**2 == pytest.approx(0.75)


def test_whitened_correlated_noise_is_independent_and_of_the_declared_size():
    covariance = torch.tensor([[1.0, 0.8], [0.8, 2.0]], dtype=torch.float64)
    count, generator = 20_000, torch.Generator().manual_seed(0)
    raw = torch.randn(2, count, generator=generator, dtype=torch.float64)
    seen = _several(covariance, torch.zeros(2, count, dtype=torch.float64))
    white = seen.whiten(torch.linalg.cholesky(covariance) @ raw) / seen.noise_std
    # n = 20000 for each entry; 5 standard errors (below .036 each): false alarms below 1e-5.
    torch.testing.assert_close(white @ white.T / count, torch.eye(2).double(), atol=0.05, rtol=0)


def test_a_difference_of_gradients_is_clipped_as_one_vector():
    (model, flat), (inputs, targets) = _network(), _batch(1)
    other = 0.5 * flat
    one = sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=None))
    two = sent_gradient(model, other, inputs=inputs, targets=targets, of=Sent(clip_norm=None))
    expected = one - 0.9 * two
    expected = expected * min(1.0, 0.01 / float(expected.norm()))
    sent = sent_gradient(
        model, torch.stack([flat, other]), inputs=inputs, targets=targets,
        of=Sent(clip_norm=0.01, coefs=(1.0, -0.9)),
    )  # fmt: skip
    torch.testing.assert_close(sent, expected)


def test_a_clipped_mean_is_clipped_once_for_the_batch():
    (model, flat), (inputs, targets) = _network(), _batch(3)
    how = {"inputs": inputs, "targets": targets}
    mean = sent_gradient(model, flat, **how, of=Sent(clip_norm=None)) * 3 / 4
    sent = sent_gradient(model, flat, **how, of=Sent(clip_norm=0.01, mean_of=4.0))
    torch.testing.assert_close(sent, mean * min(1.0, 0.01 / float(mean.norm())))


def test_a_task_s_gradient_is_shown_in_its_first_block_alone():
    model = build_model("mlp", input_shape=(1, 3, 3), classes=3, generator=torch.Generator())
    task, (inputs, targets) = ClassWeights(model, classes=3), _batch(1)
    point = task.initial()
    seen = Observation(
        gradient=torch.zeros(1, task.dimensions[0]), points=point[None, None],
        covariance=torch.zeros(1, 1), clip_norm=None, records=1, task=task,
    )  # fmt: skip
    sent = sent_gradients(seen, model, inputs=inputs.float(), targets=targets)
    # Equal weights: C y_c = 1, so the loss is the cross-entropy.
    plain = sent_gradient(
        model, flatten(model), inputs=inputs.float(), targets=targets, of=Sent(clip_norm=None)
    )
    torch.testing.assert_close(sent[0], plain)


def test_noise_free_intercepts_beside_noisy_ones_are_refused():
    with pytest.raises(ValueError, match="keep the noise-free intercepts"):
        _several(torch.diag(torch.tensor([0.0, 1.0])), torch.zeros(2, 3))


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x.reshape(len(x), 3, 8))
        return self.head((z + self.attention(z, z, z)[0]).mean(dim=1))


@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_attention_of_torch_is_clipped_record_by_record(clip_norm):
    torch.manual_seed(0)
    model = _Attending().double().eval()
    inputs, targets = torch.rand(3, 24, dtype=torch.float64), torch.tensor([0, 2, 2])
    rows = [_by_backward(model, x[None], y[None]) for x, y in zip(inputs, targets, strict=True)]
    clips = [1.0 if clip_norm is None else min(1.0, clip_norm / float(r.norm())) for r in rows]
    clipped = [c * r for c, r in zip(clips, rows, strict=True)]
    expected = torch.stack(clipped).mean(dim=0)

    found = sent_gradient(
        model, flatten(model), inputs=inputs, targets=targets, of=Sent(clip_norm=clip_norm)
    )
    torch.testing.assert_close(found, expected)
