"""What a candidate batch would have sent, how far that is from the observation, and what it costs.

    score(x) = distance(clip(grad(x)), o) + weight * mean variation(x)

Shape letters: B records, C classes, D parameters, K intercepts, R starts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from .objective import PRESETS, Preset, squared_distance
from .observation import HOST, Observation, each, sent_gradients

# What an attacker knows of a picture before it sees a gradient: its box and its smoothness.
#
# Everything that is optimised lives on the unit box, where a pixel runs from 0 to 1 whatever the
# data set's normalisation is; `Box` translates. Weights of the priors therefore mean the same for
# every data set.
#
# Shape letters: R restarts, B records.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Box:
    """The range of each input coordinate, in normalised units.

    Attributes:
        low: least value, broadcastable to one record.
        span: greatest less least value, broadcastable to one record.

    >>> box = Box(low=torch.tensor(-1.0), span=torch.tensor(4.0))
    >>> box.inputs(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [-1.0, 1.0, 3.0]
    """

    low: Tensor
    span: Tensor

    def __post_init__(self) -> None:
        if not bool((self.span > 0).all()):
            raise InputError("span must be positive everywhere; bounds are (low, high), low < high")

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Box:
        """The same on another device, or in another floating-point type."""
        return Box(low=self.low.to(device, dtype), span=self.span.to(device, dtype))

    def inputs(self, pixels: Tensor) -> Tensor:
        """Normalised inputs of pixels in [0, 1]."""
        return self.low + self.span * pixels

    def pixels(self, inputs: Tensor) -> Tensor:
        """Pixels in [0, 1] of normalised inputs (outside it where the inputs leave the box)."""
        return (inputs - self.low) / self.span


def build_box(
    bounds: tuple[Tensor, Tensor], input_shape: Sequence[int], *, dtype: torch.dtype
) -> Box:
    """The box of one record from bounds per channel.

    Args:
        bounds: (low, high), each a scalar, one value per channel, or one per coordinate.
        input_shape: shape of one record, channels first.

    Returns:
        A box that broadcasts over (..., *input_shape).

    Raises:
        ValueError: a bound has none of these shapes, or low is not below high.

    >>> low, high = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 2.0])
    >>> tuple(build_box((low, high), (3, 8, 8), dtype=torch.float64).span.shape)
    (3, 1, 1)
    """
    shape = tuple(input_shape)
    low, high = (_spread(torch.as_tensor(bound, dtype=dtype), shape) for bound in bounds)
    return Box(low=low, span=high - low)


def _spread(bound: Tensor, shape: tuple[int, ...]) -> Tensor:
    if bound.numel() == 1:
        return bound.reshape(())
    if tuple(bound.shape) == shape:
        return bound
    if bound.numel() == shape[0]:
        return bound.reshape(-1, *(1 for _ in shape[1:]))
    raise InputError(
        f"bound of shape {tuple(bound.shape)} must be a scalar, ({shape[0]},) or {shape}"
    )


def total_variation(pixels: Tensor, *, isotropic: bool = False) -> Tensor:
    """Sum of the differences of neighbouring pixels of each image.

    Args:
        pixels: (..., channels, height, width).
        isotropic: True for the length of each pixel's gradient vector, False for the sum of the
            absolute horizontal and vertical differences.

    Returns:
        (...,) total variation; summed over channels.

    Raises:
        ValueError: `pixels` has fewer than 3 dimensions.

    >>> step = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> total_variation(step).item()
    2.0
    """
    if pixels.ndim < 3:
        raise InputError(
            f"pixels of shape {tuple(pixels.shape)} must be (..., channels, height, width)"
        )
    down = pixels[..., 1:, :] - pixels[..., :-1, :]
    right = pixels[..., :, 1:] - pixels[..., :, :-1]
    if not isotropic:
        return down.abs().sum(dim=(-3, -2, -1)) + right.abs().sum(dim=(-3, -2, -1))
    # The last row and column have one neighbour; 1e-12 keeps the root differentiable at 0.
    inner = (down[..., :, :-1] ** 2 + right[..., :-1, :] ** 2 + 1e-12).sqrt()
    edge = down[..., :, -1:].abs().sum(dim=(-3, -2, -1)) + right[..., -1:, :].abs().sum(
        dim=(-3, -2, -1)
    )
    return inner.sum(dim=(-3, -2, -1)) + edge


def colour_variation(pixels: Tensor) -> Tensor:
    """Sum over places of the length of the colour's slope, brightness and colour kept apart.

    Edges of photos lie at one place in all channels, and are edges of brightness far more than of
    colour: for three channels the slope is taken in the orthonormal coordinates (r + g + b, r - g,
    r + g - 2 b), the latter two counted doubly. One length for all channels and both directions
    is the vectorial total variation of Bresson and Chan (2008), "Fast Dual Minimization of the
    Vectorial Total Variation Norm".

    Returns:
        (...,) variation, times the root of the number of channels: on a grey picture it is as
        large as the isotropic total variation summed over channels.

    Raises:
        ValueError: `pixels` has fewer than 3 dimensions.

    >>> step = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> round(colour_variation(step).item(), 2)
    2.0
    """
    if pixels.ndim < 3:
        raise InputError(
            f"pixels of shape {tuple(pixels.shape)} must be (..., channels, height, width)"
        )
    channels = pixels.shape[-3]
    if channels == 3:
        turn = torch.tensor(_OPPONENT, dtype=pixels.dtype, device=pixels.device)
        pixels = (turn @ pixels.flatten(-2)).unflatten(-1, pixels.shape[-2:])
    # The last row and column have no neighbour further on: their slope is 0 that way.
    down = torch.nn.functional.pad(pixels[..., 1:, :] - pixels[..., :-1, :], (0, 0, 0, 1))
    right = torch.nn.functional.pad(pixels[..., :, 1:] - pixels[..., :, :-1], (0, 1))
    squares = (down.square() + right.square()).sum(dim=-3)
    # 1e-6 keeps the root differentiable at 0, and a thousandth of the box is no edge.
    lengths = (squares + 1e-6).sqrt() - 1e-3
    return lengths.sum(dim=(-2, -1)) * channels**0.5


_OPPONENT = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2 * 2**-0.5, -2 * 2**-0.5, 0.0),
    (2 * 6**-0.5, 2 * 6**-0.5, -4 * 6**-0.5),
)


# A crafted model as the one who made it reads it: which parts of a gradient hold single records.
#
# The gradient of a linear layer's row i is sum_b d_ib [f_b, 1] over the records b of a batch, f_b
# the layer's input. Rows are made so that one, less the next of its direction, holds the records of
# one *bin* alone; a bin with one record gives away its f_b, as the quotient of the weight's part
# and the bias's. Fowl et al., "Robbing the Fed", ICLR 2022, arXiv 2110.13057.
#
# Shape letters: F features, S slots (one a row of the layer), D parameters.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Imprint:
    """A crafted model, and how a gradient on it is read.

    Attributes:
        parameters: (D,) the model, in `named_parameters` order.
        weight, bias: where the layer that is read lies in it.
        follows: for each row of the layer the one that is subtracted from it; -1 for none.
        inputs_of: (F,) features to the record (*shape), in normalised units.
        reference: whether its slots are subtracted from those of the other models of a batch.
        places: of a model that shows pieces of one record, for each slot and feature (S, F) the
            pixel that it holds, counted over the record; -1 for none. None where slots hold whole
            records.
    """

    parameters: Tensor
    weight: slice
    bias: slice
    follows: tuple[int, ...]
    inputs_of: Callable[[Tensor], Tensor]
    reference: bool = False
    places: Tensor | None = None

    def slots(self, gradient: Tensor) -> Tensor:
        """(S, F + 1) what every bin holds of a gradient (D,): weights, then the bias."""
        rows = torch.cat(
            [gradient[self.weight].reshape(len(self.follows), -1), gradient[self.bias][:, None]],
            dim=1,
        )
        after = torch.tensor(self.follows, device=rows.device)
        return rows - torch.where(after[:, None] >= 0, rows[after.clamp_min(0)], 0.0)

    def is_at(self, point: Tensor) -> bool:
        """Whether gradients were taken on this model, (P, D') in any precision."""
        mine = self.parameters.to(point)
        return len(point) == 1 and point.shape[1] == len(mine) and torch.equal(point[0], mine)

    def to(self, *, dtype: torch.dtype) -> Imprint:
        """The same with the model as it is sent in a floating-point type."""
        return replace(self, parameters=self.parameters.to(dtype))


def slots_of(imprints: Sequence[Imprint], gradients: Tensor) -> list[Tensor]:
    """What every bin of every model holds, less what the reference holds.

    Args:
        imprints: K crafted models, at most one of them a reference.
        gradients: (K, D) of one batch, one on each.

    Returns:
        For each model (S, F + 1).
    """
    held = [imprint.slots(g) for imprint, g in zip(imprints, gradients, strict=True)]
    base = next((of for imprint, of in zip(imprints, held, strict=True) if imprint.reference), None)
    if base is None:
        return held
    return [
        of if imprint.reference else of - base for imprint, of in zip(imprints, held, strict=True)
    ]


_PRIOR_FACTOR, _PRIOR_POWER, _PRIOR_RANGE = 0.66, 0.7, (1.0, 14.0)
"""Weight of the variation over what noise and signal alone give; see `asked_weight`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """What every stage needs, in one floating-point type and on one device.

    Steps in float32 are taken on `device`; all else is computed where the tensors lie, which is
    there too if it has float64.
    """

    observation: Observation
    model: nn.Module
    box: Box
    shape: tuple[int, ...]
    classes: int
    preset: Preset = PRESETS["matched"]
    labels: Tensor | None = None  # (B,), None where they are optimised
    prior_image: Tensor | None = None  # (*shape), on the unit box
    device: torch.device = HOST
    imprints: tuple[Imprint, ...] = ()  # of models that were crafted, as far as any were
    unit: float = 1.0  # of the slopes that are sought in place of labels, if they are

    def to(
        self, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Problem:
        """The same problem on another device, or in another floating-point type."""
        prior, labels, model = self.prior_image, self.labels, self.model
        if device is not None and device != self.box.span.device:
            model = copied(model).to(device)  # for its buffers; its parameters are not read
        if dtype is not None:
            model = with_buffers(model, dtype)
        return replace(
            self,
            observation=self.observation.to(device=device, dtype=dtype),
            model=model,
            box=self.box.to(device=device, dtype=dtype),
            labels=None if labels is None else labels.to(device),
            prior_image=None if prior is None else prior.to(device, dtype),
        )


def with_buffers(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A network whose buffers are of a type, as the values are that it is called with."""
    numbers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if all(buffer.dtype == dtype for buffer in numbers):
        return model
    return copied(model).to(dtype=dtype)


def copied(model: nn.Module) -> nn.Module:
    """A copy of a network whose parameters are not read.

    `torch.func.functional_call` leaves the tensors of a transform that has ended in a layer that
    stands twice, and these cannot be copied: zeros stand for them.
    """
    left = [p for p in model.parameters() if not isinstance(p, nn.Parameter)]
    return copy.deepcopy(model, {id(p): nn.Parameter(p.new_zeros(p.shape)) for p in left})


def check_repeatable(model: nn.Module, inputs: Tensor) -> None:
    """Refuse a network that answers otherwise at the next call, or that learns from being called.

    Args:
        inputs: (B, ...) some that it takes.

    Raises:
        ValueError: Outputs of two calls differ, as with dropout in training mode, or running
            statistics of a batch normalisation are gathered.

    >>> check_repeatable(nn.Dropout(0.5).eval(), torch.ones(2, 3))
    """
    twin = copied(model)
    for name, layer in twin.named_modules():
        gathers = isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        if gathers and layer.training:
            raise InputError(
                f"layer {name!r} gathers running statistics, in training mode; call model.eval()"
            )
    held = next((p for p in twin.parameters() if p.is_floating_point()), inputs)
    fed = inputs.to(held) if inputs.is_floating_point() else inputs.to(held.device)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        one, two = twin(fed), twin(fed)
    if not torch.allclose(one, two, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise InputError(
            "the model answers otherwise when it is called again, as dropout in training mode "
            "does, so that no candidate can be compared with the gradient; call model.eval(), and "
            "give random parts of the network fixed values"
        )


def home_of(device: torch.device) -> torch.device:
    """Where that is computed which needs float64: the device, or the CPU if it has none.

    >>> home_of(torch.device("cuda", 1)), home_of(torch.device("mps"))
    (device(type='cuda', index=1), device(type='cpu'))
    """
    return HOST if device.type == "mps" else device


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherLoss:
    """What certified records say of a gradient that is not of the declared loss.

    Attributes:
        left: relative residual under the loss of the outputs that suits it best; None where the
            first layer alone speaks for the record.
        factors: of the declared loss, one for each record; None where it is no multiple of that.
        labelled: whether its derivative in the logits shows the labels.
        open: how many numbers of a record were left out with the gradient's, and their bound.
        signs: whether signs of the gradient alone tell of the record.
        searched: whether nothing is certified: records and derivatives were searched for.
        rest: how many records of the batch leave nothing in the first layer.
    """

    left: float | None
    factors: tuple[float, ...] | None
    labelled: bool
    open: tuple[int, float] = (0, 0.0)
    signs: bool = False
    searched: bool = False
    rest: int = 0

    @property
    def words(self) -> str:
        """The same in a sentence."""
        if self.rest:
            return (
                "the first layer's gradient has fewer directions than there are records, by "
                f"{self.rest}: as many leave nothing there, as where their loss counts for "
                "nothing, or records is too large, or several add up in one direction, and what "
                "was found is a mean of theirs"
            )
        if self.signs:
            return (
                "the signs of the first layer's gradient tell which numbers of the record lie "
                "above 0, below it and at it, as the network is fed; each is shown in the middle "
                "of what is left of its range"
            )
        if self.open[0]:
            return (
                f"the record is exact by the first layer, but for {self.open[0]} numbers of which "
                "that layer's gradient holds none: they are shown as 0, and are at most "
                f"{self.open[1]:.2g} in size as the network is fed"
            )
        if self.left is None:
            return (
                "the record is exact by the first layer alone; the rest of the gradient is not of "
                "the declared model and loss, as under dropout, momentum or weight decay; where "
                "that layer's weight and bias were scaled apart, as by a clip of each tensor, the "
                "record is a multiple of it, and where a column was masked, its zero says nothing"
            )
        if self.searched:
            return (
                "the loss's derivative in the outputs was searched for beside the records, as the "
                "gradient is of another loss than the declared cross-entropy"
            )
        exact = "what is exact is so under any loss of the outputs"
        said = "the gradient is of another loss or clip than the one declared"
        if self.factors is None:
            return f"{exact}; {said}"
        said = said.replace(" or clip", "")
        least, most = min(self.factors), max(self.factors)
        if most <= 1.001 * least:
            return f"{exact}; {said}, by a factor of {most:.3g}"
        return f"{exact}; {said}, by factors of {least:.3g} to {most:.3g}"


class Certified(NamedTuple):
    """Records of a batch, each by itself: (F, *shape) normalised inputs, and their labels (F,).

    A label is -1 where several fit; `loss` is None where the gradient is of the declared one, and
    `left` what conditions of a stage of its own leave, relative to their size.
    """

    inputs: Tensor
    labels: Tensor
    loss: OtherLoss | None = None
    left: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """A batch, how it was found and at what cost, and how far the observation speaks for it.

    Of a batch that is certified in part these are the records that are, and `rest` is the others'.
    """

    pixels: Tensor  # (B, *shape)
    labels: Tensor  # (B,)
    iterations: int
    stage: str
    loss: OtherLoss | None = None
    rest: Observation | None = None
    supported: tuple[bool, ...] = ()
    reached: float = math.nan


def gradients_of(problem: Problem, pixels: Tensor, soft: Tensor, *, together: bool) -> Tensor:
    """(R, K, D) gradients that (R, B, *shape) candidates with (R, B, C) logits would have sent."""
    targets = soft if problem.labels is not None else soft.softmax(dim=-1)
    if problem.observation.slopes:
        targets = problem.unit * soft

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradients(problem.observation, problem.model, inputs=x, targets=y)

    inputs = problem.box.inputs(pixels)
    if together and len(inputs) > 1:
        return each(one, inputs, targets)
    return torch.stack([one(x, y) for x, y in zip(inputs, targets, strict=True)])


def distance_of(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The preset's distance of (R, K, D) gradients, (R,).

    With declared noise it is squared and in units of the signal, which is read from the device
    here, once.
    """
    seen = problem.observation
    if problem.preset.follow_noise and seen.is_noisy:
        unit = 2 * _signal(problem)
        return lambda gradients: squared_distance(gradients, seen) / unit
    return lambda gradients: problem.preset.objective(gradients, seen)


def variations(problem: Problem, pixels: Tensor) -> Tensor:
    """(R,) mean variation per pixel of (R, B, *shape); 0 for records that are not pictures."""
    if len(problem.shape) != 3:
        return pixels.new_zeros(len(pixels))
    of = colour_variation if problem.preset.colour else total_variation
    return of(pixels).sum(dim=1) / pixels[0].numel()


def scores(problem: Problem, pixels: Tensor, soft: Tensor) -> Tensor:
    """(R,) what the choice among starts goes by: the true network, no prior but the noise's."""
    sent = gradients_of(problem, pixels, soft, together=False)
    return distance_of(problem)(sent).detach() + asked_weight(problem) * variations(problem, pixels)


def asked_weight(problem: Problem) -> float:
    """Weight of the mean variation that the declared noise asks for; without noise what stays.

    With `distances` in units of the signal, a log-posterior weighs the prior by noise over signal
    per pixel, times the scale of the prior: 14 for the variation of photos. But the mode of a
    posterior is flatter than its mean, the more so the less the gradient says: the factor falls
    with the noise on as many coordinates as there are pixels, by a rule found on four photos at
    noise .001 and .01.
    """
    seen = problem.observation
    preset = problem.preset
    if not preset.follow_noise:
        return 0.0
    if not seen.is_noisy:
        return preset.tv_weight if preset.fade is None else 0.0
    signal, variance = _signal(problem), seen.noise_std**2
    pixels = seen.records * math.prod(problem.shape)
    ratio = math.sqrt(pixels * variance / signal)
    low, high = _PRIOR_RANGE
    factor = min(max(_PRIOR_FACTOR / ratio**_PRIOR_POWER, low), high)
    return factor * variance / signal * pixels


def squared_size(observation: Observation) -> float:
    """Squared norm of the observed gradients, in the units of `squared_distance`."""
    return float(observation.whiten(observation.gradient).square().sum())


def is_faster_together(problem: Problem, pixels: Tensor, soft: Tensor) -> bool:
    """Whether one batched second backward beats one per start, by trying both.

    Batching wins on small networks and on GPUs, where calls cost more than arithmetic, and loses on
    batches of clipped records, whose convolutions are grouped already. A batch that the device has
    no memory for has lost.
    """
    if len(pixels) == 1:
        return False
    asked, distance = pixels.detach().requires_grad_(), distance_of(problem)
    # Of a GPU the process's own time says how long it took to ask.
    clock = process_time if asked.device.type == "cpu" else perf_counter
    seconds = []
    for together in (True, False):
        best = math.inf
        for _ in range(2):  # the first call pays for set-up
            begin = clock()
            try:
                gradients = gradients_of(problem, asked, soft.detach(), together=together)
                (slope,) = torch.autograd.grad(distance(gradients).sum(), asked)
            except torch.OutOfMemoryError:
                if not together:
                    raise
                break
            float(slope.sum())  # waits for the device
            best = min(best, clock() - begin)
        seconds.append(best)
    return seconds[0] < seconds[1]


def _signal(problem: Problem) -> float:
    """Squared norm of the gradient under the noise, at least one coordinate's noise."""
    seen = problem.observation
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    if seen.clip_norm is not None:
        energy = min(energy, seen.clip_norm**2)
    return max(energy, seen.noise_std**2, 1e-300)
