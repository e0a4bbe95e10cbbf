"""The model that a file of gradients belongs to, and what the two give together.

The parameters are those of the gradient file, else of a state dict, else those that
"module:function" returns; the function is then called twice, and refused where it draws its weights
anew. The number of classes, where it is not given, is the one that fits the gradients.

The network is taken in evaluation mode: dropout passes everything, and BatchNorm is an affine map
per channel by its running statistics, which a state dict holds. Where that explains little of a
gradient, `invert` takes BatchNorm by the statistics of the batch.

Shape letters: K intercepts, D parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...attacks.exact.binary_vertices import signs_of_input
from ...attacks.exact.first_layer import least_records
from ...attacks.inversion.inversion import Reconstruction
from ...attacks.problem.columns import Columns, Lookups, columns_of, round_inputs
from ...attacks.problem.labels import recognised, without_decay
from ...attacks.problem.observation import Observation, sent_gradients
from ...attacks.tokens.layers import Table, dense, probe_tokens, token_table
from ...privacy.errors import InputError, InputTypeError, within
from ...training.engine.tensor_file import TensorFile
from ...training.models.parameters import (
    build_model,
    flatten,
    frozen_as_buffers,
    retyped,
    unflatten,
)
from .layouts import CONVERT, BatchFacts, Layout, whole_model, with_kinds
from .prior_records import read_tensors

# Gradients from anywhere: a file of them, by the names of the model's parameters, or by names and
# in layouts that `layouts` knows.
#
#     gradient.NAME      of the parameter NAME of the model, in the shape that the model has it
#     parameter.NAME     the value at which it was taken; of all parameters or of none
#     0.gradient.NAME    of the first of several intercepts of one batch, 1. of the second, and so
#     on;
#                        parameters likewise, or without a number for all intercepts
#     NAME               the same as gradient.NAME
#
# What its metadata may say is in `options`.
#
# Shape letters: K intercepts, D parameters.

_KEY = re.compile(r"(?:(\d{1,9})\.)?(gradient|parameter)\.(.+)", re.DOTALL)
_NAMED = 4
"""How many names an error lists."""


class Gradients(NamedTuple):
    """What a file says of a model, its parameters in the order of ``named_parameters``.

    Attributes:
        rows: (K, D) gradients.
        points: (K, D) parameters at which they were taken; None where the file holds none.
        buffers: of the model, by name, as the file holds them beside parameters.
        notes: what was taken to be so, in sentences.
        missing: parameters without a gradient in some intercept, whose rows hold zeros for it.
    """

    rows: Tensor
    points: Tensor | None
    buffers: Mapping[str, Tensor]
    notes: Sequence[str]
    missing: frozenset[str]


def gradients_of(
    file: TensorFile, model: nn.Module, *, input_shape: tuple[int, ...] = ()
) -> Gradients:
    """The gradients of a model, and the parameters at which they were taken.

    Args:
        file: as at the head of the module.
        model: gives names, shapes and order of the parameters.
        input_shape: of one record, channels first.

    Raises:
        ValueError: The names or shapes are not those of the model, or every gradient is 0.
        TypeError: A gradient holds integers.
    """
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    gradients: dict[int | None, dict[str, Tensor]] = {}
    parameters: dict[int | None, dict[str, Tensor]] = {}
    plain = set(file.tensors) == set(shapes)  # a layer of the model may be called "gradient"
    # Tensors by intercept and by kind, as their keys say.
    for key, tensor in (file.tensors if plain else with_kinds(file.tensors)).items():
        found = None if plain else _KEY.fullmatch(key)
        index, kind, name = (None, "gradient", key) if found is None else found.groups()
        into = gradients if kind == "gradient" else parameters
        held = into.setdefault(None if index is None else int(index), {})
        if name in held:
            raise InputError(f"{file.path} holds {kind} {name!r} twice; keep one of them")
        held[name] = tensor
    if not gradients:
        raise InputError(f"{file.path} holds parameters alone; save `gradient.NAME` beside them")
    order = _intercepts(file.path, gradients, parameters)
    # One precision for all, and the order of the model's parameters.
    double = any(tensor.dtype == torch.float64 for tensor in file.tensors.values())
    dtype = torch.float64 if double else torch.float32
    layout = Layout(model=model, input_shape=input_shape)
    buffers, missing = dict[str, Tensor](), set[str]()

    def flat(held: Mapping[str, Tensor], kind: str, index: int | None) -> Tensor:
        where = f"{file.path}: " if index is None else f"{file.path}, intercept {index}: "
        named = layout.fit(file.path, held)
        stored = {n: named.pop(n) for n, _ in model.named_buffers() if n in named}
        _check_buffers(file.path, stored, model)
        if kind == "parameter":
            buffers.update(stored)
        elif set(named) & set(shapes):  # a part of the gradient says something, too
            missing.update(set(shapes) - set(named))
            named = {n: torch.zeros(shape) for n, shape in shapes.items()} | named
        check_tensors(named, shapes, where=where, kind=kind)
        return torch.cat([named[name].to(dtype).flatten() for name in shapes])

    stacked = torch.stack([flat(gradients[k], "gradient", k) for k in order])
    for k, row in zip(order, stacked, strict=True):
        if not bool(row.any()):
            which = "" if k is None else f" of intercept {k}"
            raise InputError(
                f"{file.path}: every gradient{which} is 0; save them after the backward pass and "
                "before they are zeroed"
            )
    # An intercept without parameters of its own has those without a number.
    at = [k if k in parameters else None for k in order] if parameters else []
    points = torch.stack([flat(parameters[k], "parameter", k) for k in at]) if at else None
    return Gradients(stacked, points, buffers, layout.notes, frozenset(missing))


def _intercepts(
    path: Path, gradients: Mapping[int | None, object], parameters: Mapping[int | None, object]
) -> list[int | None]:
    if None in gradients and len(gradients) > 1:
        raise InputError(
            f"{path} holds gradients with and without the number of an intercept; number all of "
            "them, as in `0.gradient.NAME`"
        )
    order: list[int | None] = [None] if None in gradients else list(range(len(gradients)))
    if set(order) != set(gradients):
        numbers = ", ".join(str(k) for k in sorted(k for k in gradients if k is not None))
        raise InputError(f"{path} holds intercepts {numbers}; number them from 0 without a gap")
    stray = sorted(k for k in parameters if k is not None and k not in gradients)
    if stray:
        raise InputError(f"{path} holds parameters of intercept {stray[0]}, but no gradient of it")
    lacking = [k for k in order if k not in parameters and None not in parameters]
    if parameters and lacking:
        raise InputError(f"{path} holds no parameters of intercept {lacking[0]}; give all or none")
    if None in parameters and len(parameters) > 1:
        raise InputError(f"{path} holds parameters with and without a number; keep one form")
    return order


def check_tensors(
    held: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], *, where: str, kind: str
) -> None:
    """Refuse tensors that are not those of a model.

    Args:
        held: by name.
        where: file, at the head of a sentence.
        kind: what the tensors are, in the singular.

    Raises:
        ValueError: A name is missing, there is one too many, or a shape is another.
        TypeError: A tensor holds integers.
    """
    unexpected = [name for name in held if name not in shapes]
    missing = [name for name in shapes if name not in held]
    if unexpected or missing:
        parts = [f"{len(missing)} of {len(shapes)} missing: {_listed(missing)}"] * bool(missing)
        parts += [f"{len(unexpected)} unknown to the model: {_listed(unexpected)}"] * bool(
            unexpected
        )
        raise InputError(
            f"{where}the {kind}s are not those of the model, {'; '.join(parts)}; give one for each "
            "of its named_parameters(), of all layers"
        )
    wrong = [name for name, shape in shapes.items() if tuple(held[name].shape) != shape]
    if wrong:
        listed = [f"{n!r} is {tuple(held[n].shape)}, must be {shapes[n]}" for n in wrong[:_NAMED]]
        turned = all(sorted(held[n].shape) == sorted(shapes[n]) for n in wrong)
        raise InputError(
            f"{where}{len(wrong)} {kind}s have not the model's shape: {'; '.join(listed)}; "
            + (f"PyTorch has outputs first: {CONVERT}" if turned else "is it another model?")
        )
    for name, tensor in held.items():
        if not tensor.is_floating_point():
            raise InputTypeError(
                f"{where}{kind} {name!r} is of {str(tensor.dtype).removeprefix('torch.')}, must "
                "be a floating-point type"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more


FROM_FILE, FROM_WEIGHTS, FROM_MODEL = "gradient file", "weights file", "model function"

_MOST = 1e100  # of a norm, whose square is a number then
SLACK = 1e-3
"""What rounding to half precision may add to a norm."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Posed:
    """A model, what is known of the batch, its gradients, and where the parameters are from.

    `table` is where a model of tokens looks them up, None where records are numbers.
    `statistics_given` says whether a file held the statistics of BatchNorm, and `by_batch` that
    these are the batch's own, as in training mode.
    """

    model: nn.Module
    facts: BatchFacts
    classes: int
    observation: Observation
    parameters_from: str
    table: Table | None = None
    statistics_given: bool = False
    by_batch: bool = False
    notes: Sequence[str] = ()


def build_problem(
    file: TensorFile, facts: BatchFacts, *, model: str, weights: Path | None
) -> Posed:
    """The attack that a file of gradients asks for.

    Args:
        facts: what is known of the batch.
        model: name of a ready network, or "module:function".
        weights: state dict, where the file has no parameters.

    Returns:
        What the attack needs.

    Raises:
        ValueError: The gradients are not the model's, the model does not take such inputs, no
            parameters are known, or the numbers contradict each other.
        TypeError: A gradient holds integers, or the function returns no network.
    """
    # Gradients have to be the model's, and labels among its classes.
    network, classes, (gradients, points, stored, notes, missing) = _fitting(file, facts, model)
    if facts.labels is not None and not all(0 <= label < classes for label in facts.labels):
        raise InputError(f"labels={facts.labels} must lie in 0 to {classes - 1}")
    network = retyped(network, gradients.dtype)
    # Parameters come from the file, from weights, or from the model function.
    origin, notes, given = FROM_FILE, [*notes], set(stored)
    if stored:
        held = TensorFile(path=file.path, tensors=stored, metadata={})
        _load(network, held, buffers_alone=True)
    if points is not None and weights is not None:
        tensor_file = read_tensors(weights)
        if not set(tensor_file.tensors) <= {name for name, _ in network.named_buffers()}:
            raise InputError(
                f"{file.path} holds parameters already; leave {weights} out, or what is not a "
                "buffer out of it"
            )
        _load(network, tensor_file, buffers_alone=True)
        given |= set(tensor_file.tensors)
    if points is None:
        origin = FROM_MODEL if weights is None else FROM_WEIGHTS
        if weights is not None:
            layout = Layout(model=network, input_shape=facts.input_shape)
            held = whole_model(read_tensors(weights))
            held = replace(held, tensors=layout.fit(weights, held.tensors))
            _load(network, held)
            notes, given = notes + layout.notes, given | set(held.tensors)
        points = flatten(network).to(gradients.dtype).expand(len(gradients), -1)
    given |= {name for name, _ in network.named_parameters() if origin != FROM_MODEL}
    if not set(_values(network)) <= given:
        again = _build(model, facts, classes=classes, seed=1)
        again = retyped(_with_frozen_as_buffers(again, file), gradients.dtype)
        _check_trained(network, again, model, facts, given=given)
    # What the norms contradict is refused; then the model is tried on such records.
    _check_norms(gradients, facts, path=file.path)
    columns = columns_of(network, facts.input_shape, points[0], bounds=facts.bounds())
    table = None if columns is not None else token_table(network, facts.input_shape)
    shown, whole = None, table is not None or facts.noise_std > 0
    missing -= frozenset() if table is None else _unreached(network, facts)
    if missing and whole:
        raise InputError(
            f"{file.path} has no gradient of {_listed(sorted(missing))}; of tokens, and under "
            "noise, give one for each of named_parameters(), of all layers"
        )
    parts = unflatten(network, gradients)
    told = {name: bool(part.any()) for name, part in parts.items()}
    if not whole and not all(told.values()):
        shown = torch.cat([torch.full((p[0].numel(),), told[n]) for n, p in parts.items()])
        absent = [name for name, of in told.items() if not of]
        notes += [
            f"gradients of {len(absent)} of {len(told)} parameters are missing or 0 throughout "
            f"({_listed(absent)}), and are taken to say nothing, as of frozen layers"
        ]
    observation = Observation(
        gradient=gradients,
        points=points[:, None].contiguous(),
        covariance=facts.noise_std**2 * torch.eye(len(gradients), dtype=torch.float64),
        clip_norm=facts.clip_norm,
        records=facts.records,
        mean_of=float(facts.records) if facts.clip_batch else None,
        local_steps=facts.local_steps,
        local_rate=facts.local_rate,
        shown=shown,
    )
    of = recognised if table is None and columns is None else without_decay
    observation, said = of(observation, network, classes=classes)
    notes += said
    if table is None:
        kept = observation.uncut()
        least = least_records(kept, network, facts.input_shape)
        signed = signs_of_input(observation, network, facts.input_shape)
        if least > facts.records and signed is None:
            raise InputError(
                f"records={facts.records} makes no gradient of rank {least} in a first linear "
                f"layer, unless its numbers were cut one by one: it adds up at least {least} "
                "records, of a larger batch, several batches (momentum, local steps) or several "
                f"senders; give records={least} or more, or the gradient as it was before a cut"
            )
    posed = Posed(
        model=network,
        facts=facts,
        classes=classes,
        observation=observation,
        parameters_from=origin,
        table=table,
        statistics_given={*statistics(network)} & {*network.state_dict()} <= given,
        notes=notes,
    )
    if posed.table is not None and classes == 1:
        raise InputError("classes=1 must be at least 2 where a model looks tokens up")
    if columns is not None:
        return _with_columns(posed, columns)
    if posed.table is None:
        _probe(posed, model)
    return posed


def _with_columns(posed: Posed, columns: Lookups) -> Posed:
    """The same, with the range of categories, and a network that takes them as numbers."""
    network, facts = dense(posed.model), posed.facts
    if not columns.dtype.is_floating_point:
        round_inputs(network)
    low, high = (of.expand(len(columns.sizes)).tolist() for of in facts.bounds())
    for j, n in enumerate(columns.sizes):
        if n:
            low[j], high[j] = 0.0, float(max(n - 1, 1))
    looked = [str(j) for j, n in enumerate(columns.sizes) if n]
    given = columns.given(posed.observation, posed.model)
    by = "what the first linear layer is fed" if given is None else "which row has a gradient"
    said = f"columns {', '.join(looked)} of {len(columns.sizes)} (from 0) are looked up in tables, "
    if given is not None or isinstance(columns, Columns):
        said += f"so they are whole numbers from 0 (a fraction is dropped), and are found by {by}"
    else:
        held = (columns.possible(int(j), posed.observation, posed.model) for j in looked)
        rows = [", ".join(map(str, of.nonzero()[:_NAMED, 0].tolist())) for of in held]
        each = "; ".join(f"column {j}: {of}" for j, of in zip(looked, rows, strict=True))
        said += f"and records are not taken apart; the first with a gradient are {each}"
    facts = replace(facts, low=tuple(low), high=tuple(high))
    return replace(posed, model=network, facts=facts, notes=[*posed.notes, said])


def _fitting(file: TensorFile, facts: BatchFacts, name: str) -> tuple[nn.Module, int, Gradients]:
    """The model, with the number of classes for which the gradients are its own."""
    shape = facts.input_shape
    if facts.classes is not None:
        network = _with_frozen_as_buffers(_build(name, facts, classes=facts.classes), file)
        return network, facts.classes, gradients_of(file, network, input_shape=shape)
    held = [t for t in file.tensors.values() if t.ndim in (1, 2)] if len(file.tensors) > 1 else []
    sizes = {side for t in held for side in t.shape[:: max(t.ndim - 1, 1)] if side > 1}
    sizes |= {1 for t in held if t.ndim == 2 and len(t) == 1}  # one output
    refusals: list[tuple[bool, Exception]] = []
    for classes in sorted(sizes):
        built = False
        try:
            network = _with_frozen_as_buffers(_build(name, facts, classes=classes), file)
            built = True
            return network, classes, gradients_of(file, network, input_shape=shape)
        except (ValueError, TypeError) as error:
            refusals.append((built, error))
    if not refusals:
        raise InputError("classes is not given, and no gradient tells it; give --classes")
    if len({str(error) for _, error in refusals}) == 1:
        raise refusals[0][1]
    # What a model that could be built says of the gradients tells most.
    said = max(refusals, key=lambda refusal: (refusal[0], " is 0; " in str(refusal[1])))[1]
    raise InputError(f"{said} (classes is not given; tried {sorted(sizes)})") from said


def _build(name: str, facts: BatchFacts, *, classes: int, seed: int = 0) -> nn.Module:
    network = build_model(
        name,
        input_shape=facts.input_shape,
        classes=classes,
        generator=torch.Generator().manual_seed(seed),
        regression=classes == 1,
        probe=probe_tokens,
        evaluated=True,
    )
    return network.eval()


def _with_frozen_as_buffers(network: nn.Module, file: TensorFile) -> nn.Module:
    """The network, of which those parameters are left that are trained or have a gradient."""
    held, sent = with_kinds(file.tensors), set[str]()
    for key, tensor in held.items():
        named = _KEY.fullmatch(key)
        if (named is None or named[2] == "gradient") and bool(tensor.any()):
            sent.add(key if named is None else named[3])
    trained = sum(p.requires_grad for p in network.parameters())
    whole = all(key.isdecimal() for key in held) and len(held) != trained  # a list of all
    return network if whole else frozen_as_buffers(network, sent)


def _load(network: nn.Module, weights: TensorFile, *, buffers_alone: bool = False) -> None:
    """Put a state dict into a network; buffers may be left out but for statistics."""
    # Buffers, parameters, and further names of the same tensor.
    stored_names = network.state_dict()
    buffers = {name for name, _ in network.named_buffers(remove_duplicate=False)}
    buffers &= set(stored_names)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    again = _other_names(network)
    for other, name in again.items():
        one, two = (weights.tensors.get(of) for of in (other, name))
        if one is not None and two is not None and not torch.equal(one, two):
            raise InputError(
                f"{weights.path}: {name!r} and {other!r} differ, and the model holds one tensor "
                "for both; is it another model?"
            )
    # The model's parameters are all there, and so are statistics that it normalises by.
    held = {
        name: tensor
        for name, tensor in weights.tensors.items()
        if name not in buffers and name not in again
    }
    if not buffers_alone:
        check_tensors(held, shapes, where=f"{weights.path}: ", kind="parameter")
    lacking = [
        name for name in statistics(network) if name in stored_names and name not in weights.tensors
    ]
    if lacking and not (buffers_alone and len(lacking) == len(statistics(network))):
        raise InputError(
            f"{weights.path} holds no {lacking[0]!r}, by which the layer normalises in evaluation "
            "mode; save all of state_dict()"
        )
    _check_buffers(weights.path, weights.tensors, network)
    network.load_state_dict(dict(weights.tensors), strict=False)


def _check_buffers(path: Path, held: Mapping[str, Tensor], network: nn.Module) -> None:
    """Refuse buffers of other shapes than the model's."""
    for name, buffer in network.named_buffers(remove_duplicate=False):
        if name in held and held[name].shape != buffer.shape:
            raise InputError(
                f"{path}: buffer {name!r} is {tuple(held[name].shape)}, must be "
                f"{tuple(buffer.shape)}; is it another model?"
            )


def _other_names(network: nn.Module) -> dict[str, str]:
    """Further names that a state dict has for a tensor which layers share, with its first one."""
    kinds = (network.named_parameters, network.named_buffers)
    first = {id(tensor): name for of in kinds for name, tensor in of()}
    every = {name: id(tensor) for of in kinds for name, tensor in of(remove_duplicate=False)}
    return {name: first[key] for name, key in every.items() if name != first[key]}


def statistics(network: nn.Module) -> list[str]:
    """Names of the buffers by which layers normalise in evaluation mode."""
    ends = ("running_mean", "running_var")
    return [name for name, _ in network.named_buffers() if name.endswith(ends)]


def _values(network: nn.Module) -> dict[str, Tensor]:
    """What a network computes with, by name."""
    return dict(network.named_parameters()) | dict(network.named_buffers())


def _check_trained(
    network: nn.Module, again: nn.Module, name: str, facts: BatchFacts, *, given: set[str]
) -> None:
    """Refuse values that are drawn anew at every call, and not known: they move the outputs."""
    rebuilt, same = _values(again), True
    with torch.no_grad():
        for key, value in _values(network).items():
            if key in given:
                rebuilt[key].copy_(value)
            same &= torch.equal(value.nan_to_num(), rebuilt[key].nan_to_num())
        if not same:
            with torch.random.fork_rng(devices=[]):
                probe = probe_tokens(network, facts.input_shape)
            same = torch.equal(network(probe).nan_to_num(), again(probe).nan_to_num())
    if not same:
        raise InputError(
            f"model {name!r} draws new weights whenever it is built, so they are not those that "
            "the gradient was taken at; save them as `parameter.NAME` beside the gradients, give "
            "--weights, or let the function load them"
        )


def _check_norms(gradients: Tensor, facts: BatchFacts, *, path: Path) -> None:
    """Refuse a norm that the declared clip and noise do not allow."""
    for name, value in (("clip_norm", facts.clip_norm), ("noise_std", facts.noise_std)):
        if value is not None:
            within(name, value, f"(-inf, {_MOST}]", "leave it out where there is none")
    size, energy = gradients.shape[1], gradients.double().square().sum(dim=1)  # (K,)
    noise = facts.noise_std**2 * size
    spread = 5 * facts.noise_std**2 * math.sqrt(2 * size)  # 5 standard deviations of a chi-square
    if noise and float(energy.min()) < noise - spread:
        raise InputError(
            f"noise_std={facts.noise_std:g} alone makes a gradient of norm "
            f"{math.sqrt(noise):.4g}, but {path} holds one of {float(energy.min()) ** 0.5:.4g}; "
            "give the standard deviation per coordinate of the mean as it was sent (noise "
            "multiplier * clip norm / batch size)"
        )
    if facts.clip_norm is not None:
        clip = facts.clip_norm
        most = clip**2 * (1 + SLACK) ** 2 + noise + spread + 10 * clip * facts.noise_std
        if float(energy.max()) > most:
            raise InputError(
                f"clip_norm={clip:g} with noise_std={facts.noise_std:g} cannot make a mean "
                f"gradient of norm {float(energy.max()) ** 0.5:.4g}; correct one of the two"
            )


def _unreached(network: nn.Module, facts: BatchFacts) -> set[str]:
    """The names of parameters on which the outputs of a text do not depend."""
    names, own = zip(*network.named_parameters(), strict=True)
    outputs = network(torch.zeros(1, *facts.input_shape, dtype=torch.int64))
    slopes = torch.autograd.grad(outputs.sum(), own, allow_unused=True)
    return {name for name, slope in zip(names, slopes, strict=True) if slope is None}


def _probe(posed: Posed, name: str) -> None:
    """Refuse a model whose gradient has no gradient of its own, before the attack starts."""
    low, high = posed.facts.bounds()
    shape = (posed.facts.records, *posed.facts.input_shape)
    inputs = ((low + high) / 2).expand(shape).to(posed.observation.gradient).clone()
    inputs.requires_grad_()
    targets = torch.zeros(len(inputs), dtype=torch.int64)
    try:
        sent = sent_gradients(
            posed.observation.only(0), posed.model, inputs=inputs, targets=targets
        )
        torch.autograd.grad(sent.square().sum(), inputs)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"model {name!r} cannot be differentiated twice ({_first_line(error)}); write it in "
            "plain torch operations, without data-dependent branches"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")


def residual_of(posed: Posed, found: Reconstruction) -> tuple[float, float | None]:
    """||g - o|| / ||o|| of what was found, or of a multiple that explains far more, and that."""
    seen = posed.observation
    sent = sent_gradients(
        seen, posed.model, inputs=found.inputs.to(seen.gradient), targets=found.labels
    )
    ours, theirs = sent.detach().double(), seen.gradient.double()
    factor = float((ours * theirs).sum() / ours.square().sum().clamp_min(1e-300))
    size = theirs.norm()
    left, scaled = (float((f * ours - theirs).norm() / size) for f in (1.0, factor))
    free = not seen.is_noisy and seen.clip_norm is None and seen.local_steps == 1
    return (scaled, factor) if free and factor > 0 and scaled < left / 10 else (left, None)


def residual_of_noise(posed: Posed) -> float:
    """The same of the truth under the noise, in expectation."""
    gradient = posed.observation.gradient
    size = float(torch.linalg.vector_norm(gradient.double()))
    return posed.facts.noise_std * gradient.numel() ** 0.5 / size
