"""What an adversary holds before it attacks: estimates of one batch's gradients, and their noise.

An `Observation` holds K intercepts of one batch of B records,

    gradient[k] = 1/B sum_b clip(sum_p coefs[p] grad_b(points[k, p]), clip_norm) + noise[k]

where grad_b(x) is the gradient of record b's loss at parameters x, and the noise has covariance
`covariance` over the intercepts and is independent over coordinates. Several neighbours' models of
one batch are several intercepts; an algorithm that clips a difference of gradients (STORM) has
several points. Without a defence (clip_norm None, covariance 0) an intercept is the plain mean
gradient of the batch.

Shape letters: K intercepts, P points, B records in the batch, C classes, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ...privacy.errors import InputError, within
from ...training.models.parameters import unflatten
from ...training.models.tasks import Task

# Layers computed so that a gradient may be differentiated again, one by one and under vmap.
#
# An attack differentiates the gradient that a candidate would have sent. Fused kernels of attention
# have a first derivative alone, and no rule for vmap; the fast path of `nn.TransformerEncoderLayer`
# in evaluation mode has no derivative at all. The second derivative of torch's layer norm is a
# wrong one under vmap (torch 2.13: by 7 % in a small network), without an error. Parts of a network
# that are checkpointed have no second derivative: they are computed once, which is the same.


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Compute attention, layer norm and checkpointed parts plainly while it is entered."""
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _PlainLayerNorm(), computed_once():
            yield
    finally:
        mha.set_fastpath_enabled(before)


@contextmanager
def computed_once() -> Iterator[None]:
    """Call checkpointed parts of networks as they are while it is entered."""
    with ExitStack() as held:
        for name, plain in _UNCHECKED.items():
            if getattr(checkpoint, name, plain) is not plain:  # or it is entered already
                held.enter_context(mock.patch.object(checkpoint, name, plain))
        yield


class _Once:
    """A part of a network that is checkpointed by a function of autograd, called as it is."""

    @staticmethod
    def apply(part: Callable[..., Any], _: bool, *args: Any) -> Any:
        """What the part returns."""
        return part(*args)


def _unwatched(*_: Any, **__: Any) -> Iterator[None]:
    yield  # before the part that is checkpointed, and nothing behind it


_UNCHECKED = {"CheckpointFunction": _Once, "_checkpoint_without_reentrant_generator": _unwatched}


class _PlainLayerNorm(TorchFunctionMode):
    """Layer norm from means and squares."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,  # torch's name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    over = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dim=over, keepdim=True)
    found = centred * torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


_PLAIN: Mapping[Callable[..., Any], Callable[..., Any]] = {functional.layer_norm: _layer_norm}


# What an estimate rests on that no equation says: gradients that change slowly.
#
# Such an estimate sums gradients of the victim over rounds, and whatever the others' sums leave of
# each other. What they leave has no known law. But an adversary has data of its own, drawn like
# theirs: what its own gradients of the same rounds would have left is a sample of it.
#
# Shape letters: T rounds, M samples, D parameters.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drift:
    """What was summed over rounds, and what others may have left in the sum.

    Attributes:
        points: (T, D') models at which the victim's gradients were taken.
        shares: (T,) weight of each in the estimate; they sum to 1.
        others: (M, D) samples of what others left, in the units of the estimate.
        noise_std: of the noise that was added to messages and is left in a coordinate of it.
    """

    points: Tensor
    shares: tuple[float, ...]
    others: Tensor
    noise_std: float = 0.0

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Drift:
        """The same on another device, or in another floating-point type."""
        return Drift(
            points=self.points.to(device, dtype),
            shares=self.shares,
            others=self.others.to(device, dtype),
            noise_std=self.noise_std,
        )


HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sent:
    """How the gradients of a batch's records become what is sent of them.

    Attributes:
        clip_norm: L2 bound on each record's vector, None where nothing is clipped.
        coefs: (P,) of the points: numbers, or (D',) tensors where blocks differ.
        mean_of: where the mean of the batch is clipped in place of each record: the divisor B' in
            gradient[k] = clip(1/B' sum_b grad_b) + noise[k]. None where records are clipped.
        clip_parts: whether each record's gradients are clipped one by one, before they are combined
            with `coefs`, in place of their combination.
        local_steps: how many gradient steps the batch took, each with all of its records, where the
            mean of their gradients is observed: (before - after) / (local_steps * local_rate).
            Nothing is clipped then.
        local_rate: size of such a step; 0 where there is one alone.
        task: the loss, where it is not the cross-entropy of a network's logits.
        slopes: whether targets are the loss's derivatives in the outputs, whatever loss it is.
    """

    clip_norm: float | None
    coefs: tuple[float | Tensor, ...] = (1.0,)
    mean_of: float | None = None
    clip_parts: bool = False
    local_steps: int = 1
    local_rate: float = 0.0
    task: Task | None = None
    slopes: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observation(Sent):
    """One batch's gradients as an adversary estimates them, and how they were sent.

    Attributes:
        gradient: (K, D) estimates of means of (clipped) gradients of the batch.
        points: (K, P, D') flat parameters the gradients were taken at, in `named_parameters` order;
            D' exceeds D where a task has further blocks, of which nothing is observed.
        covariance: (K, K) of the Gaussian noise on each coordinate; positive definite, or zero
            where nothing is noisy. It is read on the host by every test, and stays on the CPU.
        records: number of records B that the mean runs over.
        rounding: what rounding of messages may leave in the gradient, over its norm; algebra that
            looks for an exact solution has to allow for it.
        shown: (D,) which numbers are held; the others are 0 and say nothing. None where all are.
        cut: bound at which each number was cut, as by a clip of values; None where none was.
        drift: what it rests on, where the covariance is a guess; no test may trust that then.

    Raises:
        ValueError: a shape or a number is out of range.

    >>> seen = Observation.single(
    ...     gradient=torch.ones(3), model=torch.zeros(3), noise_std=0.5, clip_norm=None,
    ...     records=1,
    ... )
    >>> seen.gradient.square().sum().item(), seen.noise_std
    (3.0, 0.5)
    """

    gradient: Tensor
    points: Tensor
    covariance: Tensor
    records: int
    rounding: float = 0.0
    shown: Tensor | None = None
    cut: float | None = None
    drift: Drift | None = None

    @classmethod
    def single(
        cls,
        *,
        gradient: Tensor,
        model: Tensor,
        noise_std: float,
        clip_norm: float | None,
        records: int,
    ) -> Observation:
        """One intercept.

        Args:
            gradient: (D,) estimate.
            model: (D,) parameters it was taken at.
            noise_std: standard deviation of the noise on each coordinate.
            clip_norm: as the attribute.
            records: as the attribute.
        """
        if gradient.ndim != 1 or gradient.shape != model.shape:
            raise InputError(
                f"gradient of shape {tuple(gradient.shape)} and model of shape "
                f"{tuple(model.shape)} must both be (D,); flatten in named_parameters order"
            )
        within("noise_std", noise_std, "[0, inf)")
        return cls(
            gradient=gradient[None],
            points=model[None, None],
            covariance=torch.tensor([[noise_std**2]], dtype=torch.float64),
            clip_norm=clip_norm,
            records=records,
        )

    def __post_init__(self) -> None:
        # Gradient, points and covariance fit together and are finite.
        g, p, s = self.gradient, self.points, self.covariance
        if g.ndim != 2 or p.ndim != 3 or len(p) != len(g) or p.shape[2] < g.shape[1]:
            raise InputError(
                f"gradient of shape {tuple(g.shape)} must be (K, D) and points of shape "
                f"{tuple(p.shape)} (K, P, D); flatten in named_parameters order"
            )
        if len(g) == 0 or tuple(s.shape) != (len(g), len(g)):
            raise InputError(
                f"covariance of shape {tuple(s.shape)} must be (K, K) for {len(g)} intercepts, "
                "at least one"
            )
        for name, value in (("gradient", g), ("points", p), ("covariance", s)):
            if not bool(torch.isfinite(value).all()):
                raise InputError(f"{name} must be finite; drop rounds that diverged")
        if bool((s != 0).any()) and float(torch.linalg.eigvalsh(s.double()).min()) <= 0:
            raise InputError(
                "covariance must be positive definite, or zero; keep the noise-free intercepts "
                "alone where some are"
            )
        # How a batch is sent: clipping, records, local steps and coefficients.
        if self.clip_norm is not None:
            within("clip_norm", self.clip_norm, "(0, inf)", "None says that nothing is clipped")
        within("records", self.records, "[1, inf)")
        if self.clip_parts and self.mean_of is not None:
            raise InputError(f"mean_of={self.mean_of} must be None where clip_parts is True")
        if self.local_steps < 1 or (self.local_steps > 1 and self.clip_norm is not None):
            raise InputError(
                f"local_steps={self.local_steps} must be at least 1, and 1 where clip_norm="
                f"{self.clip_norm} is given"
            )
        if len(self.coefs) != p.shape[1]:
            raise InputError(f"{len(self.coefs)} coefs for {p.shape[1]} points; give one for each")

    @property
    def noise_std(self) -> float:
        """Noise of the best average of all intercepts, if these were of one and the same vector."""
        if not self.is_noisy:
            return 0.0
        s = self.covariance.double()
        one = torch.ones(len(s), dtype=s.dtype)
        return float(one @ torch.linalg.solve(s, one)) ** -0.5

    @property
    def is_noisy(self) -> bool:
        """Whether there is any noise."""
        return bool((self.covariance != 0).any())

    @property
    def is_plain(self) -> bool:
        """Whether every intercept is one gradient of the cross-entropy at one point."""
        (first, *others) = self.coefs
        plain = isinstance(first, float) and first == 1.0 and not others
        once = self.local_steps == 1
        alone = self.task is None and not self.slopes
        return plain and once and alone and self.mean_of is None

    def to(
        self, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Observation:
        """The same on another device, or in another floating-point type; all but the covariance."""
        return replace(
            self,
            gradient=self.gradient.to(device, dtype),
            points=self.points.to(device, dtype),
            coefs=tuple(c.to(device, dtype) if isinstance(c, Tensor) else c for c in self.coefs),
            shown=None if self.shown is None else self.shown.to(device),
            drift=None if self.drift is None else self.drift.to(device=device, dtype=dtype),
        )

    def holds(self, model: nn.Module, *names: str) -> bool:
        """Whether every number of some of a model's parameters is held."""
        if self.shown is None:
            return True
        held = unflatten(model, self.shown)
        return all(bool(held[name].all()) for name in names)

    def uncut(self) -> Observation:
        """The same of the numbers alone that were not cut."""
        if self.cut is None:
            return self
        below = (self.gradient.abs() < self.cut).all(dim=0)
        below = below if self.shown is None else below & self.shown
        return replace(self, gradient=self.gradient * below, shown=below, cut=None)

    def only(self, *chosen: int) -> Observation:
        """Some of the intercepts."""
        at = list(chosen)
        return replace(
            self,
            gradient=self.gradient[at],
            points=self.points[at],
            covariance=self.covariance[at][:, at],
        )

    def whiten(self, gradients: Tensor) -> Tensor:
        """(..., K, D) differences with the noise made independent and of size `noise_std`.

        Without noise they stay as they are.
        """
        if len(self.covariance) == 1 or not self.is_noisy:
            return gradients
        factor = torch.linalg.cholesky(self.covariance.double())
        root = torch.linalg.inv(factor).to(gradients) * self.noise_std
        return root @ gradients


def sent_gradient(
    model: nn.Module, points: Tensor, *, inputs: Tensor, targets: Tensor, of: Sent
) -> Tensor:
    """The mean clipped gradient that a batch sends, differentiable in the batch.

    Args:
        model: network with logits (B, C) as output; not used where there is a task.
        points: (D,) flat parameters, or (P, D) of several points.
        inputs: (B, *shape).
        targets: (B,) class indices or, without a task, (B, C) probabilities or slopes.
        of: how it is sent.

    Returns:
        (D,) gradient.
    """
    every, task, clip_norm = points if points.ndim == 2 else points[None], of.task, of.clip_norm

    def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(D,) gradient of the mean loss."""
        if task is not None:
            return vmap(grad(task.loss), in_dims=(None, 0, 0))(point, x, y).mean(dim=0)
        values = unflatten(model, point)

        def loss(values: dict[str, Tensor]) -> Tensor:
            with twice_differentiable():
                logits = functional_call(model, values, (x,))
            if of.slopes:
                return (logits.reshape(y.shape) * y).sum(dim=1).mean()
            return cross_entropy(logits, y)

        return torch.cat([value.flatten() for value in grad(loss)(values).values()])

    def over_steps(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(D,) mean gradient along the local steps."""
        total = first = slope(point, x, y)
        for _ in range(of.local_steps - 1):
            point = point - of.local_rate * first
            first = slope(point, x, y)
            total = total + first
        return total / of.local_steps

    # One vector of a batch over all points, whose parts may be clipped first.
    def combined(x: Tensor, y: Tensor) -> Tensor:
        slopes = [over_steps(p, x, y) for p in every]
        if of.clip_parts and clip_norm is not None:
            slopes = [g * _clip_factor(g, clip_norm) for g in slopes]
        parts = [c * g for c, g in zip(of.coefs, slopes, strict=True)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    if of.mean_of is not None:
        mean = combined(inputs, targets) * (len(inputs) / of.mean_of)
        return mean if clip_norm is None else mean * _clip_factor(mean, clip_norm)
    if clip_norm is None or len(inputs) == 1:  # one gradient: no need for one row per record
        flat = combined(inputs, targets)
        free = clip_norm is None or of.clip_parts
        return flat if free else flat * _clip_factor(flat, clip_norm or math.inf)
    # Each record's vector by itself.
    rows = each(combined, inputs.unsqueeze(1), targets.unsqueeze(1))  # (B, D)
    if of.clip_parts:
        return rows.mean(dim=0)
    return (rows * _clip_factor(rows, clip_norm)).mean(dim=0)


def each(call: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """(N, ...) a function of the rows of tensors: side by side, or one by one where it must be.

    A network may ask for a number of its input, which `vmap` refuses.

    >>> each(lambda x: x * int(x > 1), torch.tensor([1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    try:
        return vmap(call)(*rows)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        return torch.stack([call(*row) for row in zip(*rows, strict=True)])


def sent_gradients(
    observation: Observation, model: nn.Module, *, inputs: Tensor, targets: Tensor
) -> Tensor:
    """What a candidate batch would have shown in every intercept, differentiable in the batch.

    Args:
        observation: supplies points, clip and task.
        model: network with logits (B, C) as output.
        targets: (B,) class indices or (B, C) probabilities.

    Returns:
        (K, D) gradients.
    """
    rows = [
        sent_gradient(model, points, inputs=inputs, targets=targets, of=observation)
        for points in observation.points
    ]
    sent = torch.stack(rows)[:, : observation.gradient.shape[1]]
    sent = sent if observation.cut is None else sent.clamp(-observation.cut, observation.cut)
    return sent if observation.shown is None else sent * observation.shown


def rounding_of(values: Tensor) -> float:
    """What a cast may have left in numbers, over their norm.

    It is seen in the values: they have no more digits than a type has (bfloat16, float16, float32),
    or lie on an even grid, as integers of 8 bits do. A matrix of rank 1 may have a grid of its own.

    >>> x = torch.linspace(0.1, 1, 30).cos()
    >>> [rounding_of(x.to(d)) for d in (torch.bfloat16, torch.float32)] == [2**-8, 2**-24]
    True
    >>> step = float(x.max()) / 127
    >>> of = rounding_of((x / step).round() * step)
    >>> bool(of * x.square().mean().sqrt() > 0.28 * step)
    True
    """
    held = values.detach().double()
    size = float(held.square().mean().sqrt()) if held.numel() else 0.0
    if size == 0:
        return 0.0
    digits = torch.frexp(held)[0]
    coarse = next((b for b in (8, 11, 24) if bool((digits * 2**b % 1 == 0).all())), 53)
    found = 2.0**-coarse
    if coarse == _HALF and torch.equal(held.half().double(), held):
        found = max(found, 2.0**-25 / size)  # of its smallest numbers
    levels = held.unique()
    gaps = levels.diff()
    if len(levels) < _LEVELS[0] or not float(gaps.min()) * _LEVELS[1] > float(gaps.sum()):
        return found
    if held.ndim > 1 and held.numel() > held.shape[-1] > 1:
        spread = torch.linalg.svdvals(held.flatten(0, -2))
        if float(spread[1]) <= 1e-5 * float(spread[0]):
            return found
    span = float(gaps.sum())
    for part in range(1, 9):
        step = span / round(span * part / float(gaps.min()))
        if float(((levels - levels[0]) / step + 0.5).frac().sub(0.5).abs().max()) < _ON_GRID:
            return max(found, step / math.sqrt(12) / size)
    return found


_HALF, _LEVELS, _ON_GRID = 11, (6, 1100), 5e-3


def observe(
    model: nn.Module,
    parameters: Tensor,
    *,
    inputs: Tensor,
    targets: Tensor,
    clip_norm: float | None,
    noise_std: float,
    generator: torch.Generator,
) -> Observation:
    """The observation that a known batch gives rise to, for tests and benchmarks.

    Args:
        model: network with logits (B, C) as output.
        parameters: (D,) flat parameters, or (K, D) of several models of the same batch.
        inputs: (B, *shape).
        targets: (B,) class indices.
        clip_norm: L2 bound on each record's gradient; None clips nothing.
        noise_std: noise on each coordinate of the mean: noise multiplier * clip norm / batch size;
            independent over the models.
        generator: source of the noise.

    Returns:
        The observation, detached.

    >>> model, x, y = nn.Linear(2, 2), 50 * torch.ones(1, 2), torch.tensor([0])
    >>> seen = observe(
    ...     model, torch.zeros(6), inputs=x, targets=y, clip_norm=1.0, noise_std=0.0,
    ...     generator=torch.Generator(),
    ... )
    >>> round(seen.gradient.norm().item(), 4)
    1.0
    """
    models, of = parameters.detach().reshape(-1, parameters.shape[-1]), Sent(clip_norm=clip_norm)
    rows = [
        sent_gradient(model, flat, inputs=inputs, targets=targets, of=of).detach()
        for flat in models
    ]
    sent = torch.stack(rows)
    noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype).to(sent.device)
    return Observation(
        gradient=sent + noise_std * noise,
        points=models[:, None],
        covariance=noise_std**2 * torch.eye(len(models), dtype=torch.float64),
        clip_norm=clip_norm,
        records=len(inputs),
    )


def _clip_factor(gradients: Tensor, clip_norm: float) -> Tensor:
    tiny = torch.finfo(gradients.dtype).tiny  # a zero gradient stays zero, with a finite derivative
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return (clip_norm / norms.clamp_min(tiny)).clamp_max(1.0)
