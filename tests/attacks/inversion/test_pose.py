"""Which way a record's label is read."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.labels import recover_labels
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.training.models.parameters import flatten

CLASSES, PIXELS = 10, 16
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
SHORT = replace(PRESETS["matched"], exact=False, adam_steps=1, newton_steps=0, starts=1)


def recursive(label: int) -> tuple[nn.Module, Observation]:
    """What one record sends of recursive momentum: its gradient less that at the point before."""
    torch.manual_seed(label)
    model = nn.Sequential(nn.Linear(PIXELS, 12, bias=False), nn.Sigmoid(), nn.Linear(12, CLASSES))
    generator = torch.Generator().manual_seed(label)
    x = (0.5 + 0.2 * torch.randn(1, PIXELS, generator=generator)).clamp(0, 1)
    others = torch.tensor([label + 1, label + 1, 3, 4]) % CLASSES
    step = observe(
        model, flatten(model), inputs=torch.rand(4, PIXELS, generator=generator), targets=others,
        clip_norm=None, noise_std=0.0, generator=generator,
    )  # fmt: skip
    points = torch.stack([flatten(model), flatten(model) + 0.5 * step.gradient[0]])[None]
    seen = replace(step, records=1, points=points, coefs=(1.0, -0.99))
    sent = sent_gradients(seen, model, inputs=x, targets=torch.tensor([label])).detach()
    return model, replace(seen, gradient=sent)


def read(model: nn.Module, seen: Observation, *, prior: Tensor | None) -> int:
    found = reconstruct(
        seen, model, preset=SHORT, input_shape=(PIXELS,), classes=CLASSES, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(0), prior_image=prior,
    )  # fmt: skip
    return int(found.labels)


def test_signs_of_the_last_layer_do_not_tell_the_label_of_a_difference_of_gradients():
    # Ten records with fixed seeds: deterministic, no false alarms.
    signs = public = alone = 0
    for label in range(CLASSES):
        model, seen = recursive(label)
        signs += recover_labels(seen, model, classes=CLASSES).tolist() == [label]  # type: ignore[union-attr]
        public += read(model, seen, prior=torch.full((PIXELS,), 0.4)) == label
        alone += read(model, seen, prior=None) == label
    assert signs < 5
    assert (public, alone) == (CLASSES, CLASSES)
