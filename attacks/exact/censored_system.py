"""All equations of a record behind convolutions and sigmoids, each weighed by what rounding left.

With a_k the input of layer k at a record x and d_k the loss's derivative in its output,

    a_K(x) = features,    outer(a_k(x), d_k(x)) = dW_k,    sum of d_k(x) = db_k.

Every float32 number is off by e = 2^-24 of itself. What that does is carried forward and backward
as a variance: of a sigmoid at 1 - 1e-6 neither the input nor the slope is known better than to 6 %,
and equations that need them weigh accordingly. Gauss-Newton on the exact Jacobian solves them in
the box, with e large at first and smaller as the equations are met: the weak equations bind last.

Shape letters: N unknowns, E equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from .rgap_record import Activation, Affine, Layer, Reshape, weight_gradient

ROUNDING = 2.0**-24
"""What float32 may be off, relative to the number."""

_LEAST = 1e-30  # deviation of a number that is 0 to the last bit of float32
_ROUNDS = 25  # of Gauss-Newton; nine are usual
_STALE = 12  # of them that bring no smaller rounding, before a search is given up
_WASTED = 2.2e10  # E N^2 in such rounds together: 4 rounds for N = 784, and 1 at least
_TOGETHER = 128  # columns of the Jacobian at once
_SPREAD = 0.3  # of an unknown in its range, before any equation


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Top:
    """What is known at the output of a chain of layers.

    Attributes:
        features: the output.
        deviation: of each feature.
        derivative: of the loss in the features.
        variance: of the derivative.
    """

    features: Tensor
    deviation: Tensor
    derivative: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Solved:
    """Where the search ended.

    Attributes:
        inputs: (*shape) in the box.
        misfit: root mean square of what the equations leave, in deviations by rounding.
        error: (*shape) standard deviation of each unknown, as a share of its range.
    """

    inputs: Tensor
    misfit: float
    error: Tensor


def smooth(kind: type[nn.Module], z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output y, slope, and d log(slope) / dz of a sigmoid or tanh, without cancellation."""
    factor = 1 if kind is nn.Sigmoid else 2
    up, down = torch.sigmoid(factor * z), torch.sigmoid(-factor * z)
    if kind is nn.Sigmoid:
        return up, up * down, down - up
    return up - down, 4 * up * down, 2 * (down - up)


class System:
    """The equations of a chain of convolutions and smooth activations.

    Args:
        chain: layers from the input on.
        gradients: observed, by name, in float64.
        top: what is known at the chain's output.
    """

    def __init__(self, chain: list[Layer], gradients: dict[str, Tensor], *, top: Top) -> None:
        self.chain, self.top = chain, top
        seen = [top.features.flatten()]
        for layer in reversed(chain):
            if isinstance(layer, Affine) and layer.name is not None:
                seen.append(weight_gradient(layer, gradients).flatten())
                if layer.bias is not None:
                    seen.append(gradients[f"{layer.name}.bias" if layer.name else "bias"])
        self.seen = torch.cat(seen)

    def made(self, x: Tensor) -> Tensor:
        """(E,) what a record (*shape) makes of every equation."""
        inputs = list[Tensor]()
        for layer in self.chain:
            inputs.append(x)
            x = _output(layer, x)
        made, delta = [x.flatten()], self.top.derivative
        for layer, a in zip(reversed(self.chain), reversed(inputs), strict=True):
            if isinstance(layer, Reshape):
                delta = delta.reshape(layer.inside)
            elif isinstance(layer, Activation):
                delta = delta * smooth(layer.kind, a)[1]
            elif isinstance(layer, Affine):
                if layer.name is not None:
                    made.append(layer.outer(a, delta).flatten())
                    if layer.bias is not None:
                        made.append(delta.sum(dim=(1, 2)))
                delta = layer.pull(delta)
        return torch.cat(made)

    def deviations(self, x: Tensor, *, rounding: float) -> Tensor:
        """(E,) of the equations at a record, where every number is off by `rounding` of itself."""
        # Forward: the variance that rounding leaves in each layer's output.
        e, inputs, noise, var = rounding, list[Tensor](), list[Tensor](), torch.zeros_like(x)
        for layer in self.chain:
            inputs.append(x)
            noise.append(var)
            a, x = x, _output(layer, x)
            if isinstance(layer, Affine):
                var = layer.push(var + (e * a) ** 2, weight=layer.weight**2) + (e * x) ** 2
            elif isinstance(layer, Activation):
                var = smooth(layer.kind, a)[1] ** 2 * var + (e * x) ** 2
            else:
                var = layer.at(var)[0]
        # Backward: what it leaves in the derivatives, and so in each weight gradient.
        off = [(var + self.top.deviation**2).sqrt().flatten()]
        delta, var = self.top.derivative, self.top.variance + (e * self.top.derivative) ** 2
        for layer, a, before in zip(
            reversed(self.chain), reversed(inputs), reversed(noise), strict=True
        ):
            if isinstance(layer, Reshape):
                delta, var = delta.reshape(layer.inside), var.reshape(layer.inside)
            elif isinstance(layer, Activation):
                y, slope, bend = smooth(layer.kind, a)
                own = e * bend * y / slope.clamp_min(1e-300)  # the slope is that of a rounded y
                wrong = (bend**2 * before + own**2 + e**2).clamp(max=1.0)
                delta = delta * slope
                var = slope**2 * var + delta**2 * wrong
            elif isinstance(layer, Affine):
                if layer.name is not None:
                    weight = layer.outer(a, delta)
                    off.append((layer.outer(a**2, var) + (e * weight) ** 2).sqrt().flatten())
                    if layer.bias is not None:
                        off.append(var.sum(dim=(1, 2)).sqrt())
                delta, var = layer.pull(delta), layer.pull(var, weight=layer.weight**2)
        return torch.cat(off) + _LEAST

    def jacobian(self, x: Tensor) -> Tensor:
        """(E, N)."""
        # The record's own activations, once for every direction.
        shape = x.shape
        inputs = list[Tensor]()
        for layer in self.chain:
            inputs.append(x)
            x = _output(layer, x)

        # Forward and back along one direction, by the product rule.
        def along(way: Tensor) -> Tensor:
            ways = list[Tensor]()
            for layer, a in zip(self.chain, inputs, strict=True):
                ways.append(way)
                if isinstance(layer, Activation):
                    way = smooth(layer.kind, a)[1] * way
                else:
                    way = layer.push(way) if isinstance(layer, Affine) else layer.at(way)[0]
            made, delta = [way.flatten()], self.top.derivative
            moved = torch.zeros_like(delta)
            for layer, a, way in zip(
                reversed(self.chain), reversed(inputs), reversed(ways), strict=True
            ):
                if isinstance(layer, Reshape):
                    delta, moved = delta.reshape(layer.inside), moved.reshape(layer.inside)
                elif isinstance(layer, Activation):
                    _, slope, bend = smooth(layer.kind, a)
                    delta = delta * slope
                    moved = moved * slope + delta * bend * way
                elif isinstance(layer, Affine):
                    if layer.name is not None:
                        made.append((layer.outer(way, delta) + layer.outer(a, moved)).flatten())
                        if layer.bias is not None:
                            made.append(moved.sum(dim=(1, 2)))
                    delta, moved = layer.pull(delta), layer.pull(moved)
            return torch.cat(made)

        # Some directions at a time.
        every = torch.eye(shape.numel(), dtype=x.dtype).to(x).split(_TOGETHER)
        return torch.cat([vmap(along)(ways.reshape(-1, *shape)) for ways in every]).T


def _output(layer: Layer, x: Tensor) -> Tensor:
    if isinstance(layer, Activation):
        return smooth(layer.kind, x)[0]
    return layer.push(x) + layer.offset() if isinstance(layer, Affine) else layer.at(x)[0]


def search(
    system: System, start: Tensor, *, low: Tensor, high: Tensor, rounding: float
) -> Solved | None:
    """Gauss-Newton from a start; whether it ends at the record, the misfit tells.

    Rounds that bring no smaller rounding are few, the fewer the more a round costs, so that a
    search which fails takes a few rounds of a large record.

    Args:
        start: (*shape).
        low: (*shape) least values.
        high: (*shape) largest values.
        rounding: what every number is taken to be off at first.

    Returns:
        Where the search ended; None where the equations cannot be solved in float64.
    """
    x, least, stale = start.clamp(low, high), rounding, 0
    patience = min(_STALE, max(1, int(_WASTED / (len(system.seen) * x.numel() ** 2))))
    wide, middle = (high - low).flatten(), ((high + low) / 2).flatten()
    for _ in range(_ROUNDS):
        # A Gauss-Newton step, weighted by what rounding of this size leaves in each equation.
        e = max(rounding, ROUNDING)
        off = system.deviations(x, rounding=e)
        left = (system.made(x) - system.seen) / off
        rows = system.jacobian(x) / off[:, None]
        normal = rows.T @ rows
        prior = (1.0 if e > 10 * ROUNDING else 0.01) / (_SPREAD * wide) ** 2
        normal.diagonal().add_(prior)
        flat = x.flatten()
        right = -(rows.T @ left) - prior * (flat - middle)
        step = bounded(normal, right, low=low.flatten() - flat, high=high.flatten() - flat)
        if step is None:
            return None
        # The best of a few lengths of the step.
        before, best = _rms(left), (float("inf"), x)
        for share in (1.0, 0.5, 0.25, 0.1, 0.03):
            moved = (x + share * step.reshape(x.shape)).clamp(low, high)
            after = _rms((system.made(moved) - system.seen) / off)
            best = min(best, (after, moved), key=lambda pair: pair[0])
            if after < 0.9 * before:
                break
        far = float(((best[1] - x).flatten().abs() / wide).max())
        x = best[1]
        # The rounding that is assumed falls with the misfit, and rises where steps gain nothing.
        if e == ROUNDING and far < 1e-4:
            break
        if best[0] < 1.5:
            rounding = e * min(0.2, max(best[0], 1e-3))
        elif best[0] > 0.9 * before:
            rounding = min(2 * e, 0.5)
        stale += max(rounding, ROUNDING) >= least
        least = min(least, max(rounding, ROUNDING))
        if stale == patience:
            break
    # Misfit and error at the rounding of float64.
    off = system.deviations(x, rounding=ROUNDING)
    rows = system.jacobian(x) / off[:, None]
    normal = rows.T @ rows
    normal.diagonal().add_(0.01 / (_SPREAD * wide) ** 2)
    return Solved(
        inputs=x,
        misfit=_rms((system.made(x) - system.seen) / off),
        error=(_deviations(normal) / wide).reshape(x.shape),
    )


def bounded(normal: Tensor, right: Tensor, *, low: Tensor, high: Tensor) -> Tensor | None:
    """The s (N,) in [low, high] with least s' normal s / 2 - s' right, by a few active sets.

    The (N, N) `normal` is positive definite but for rounding; `low` <= 0 <= `high`, each (N,).
    """
    free, step = torch.ones_like(right, dtype=torch.bool), torch.zeros_like(right)
    for _ in range(8):
        index = free.nonzero()[:, 0]
        part = normal if len(index) == len(right) else normal[index][:, index]
        factor, failed = torch.linalg.cholesky_ex(part)
        if int(failed):
            lift = 1e-13 * normal.diagonal().max() * torch.eye(len(index)).to(part)
            factor, failed = torch.linalg.cholesky_ex(part + lift)
        if int(failed):
            return None
        rest = right - normal @ torch.where(free, 0, step)
        step[index] = torch.cholesky_solve(rest[index, None], factor)[:, 0]
        below, above = free & (step < low), free & (step > high)
        step = torch.where(below, low, torch.where(above, high, step))
        pushed = right - normal @ step
        freed = ~free & torch.where(step <= low, pushed > 0, pushed < 0)
        if not bool((below | above | freed).any()):
            break
        free = (free & ~below & ~above) | freed
    return step


def _deviations(normal: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(normal)
    if int(failed):
        return torch.full_like(normal.diagonal(), torch.inf)
    return torch.cholesky_inverse(factor).diagonal().clamp_min(0).sqrt()


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
