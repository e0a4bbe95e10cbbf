"""From a run file to the objects that it names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.accounting.request import Accountant, Adjacency
from ...privacy.batches.sampling import Drawing, drawings
from ...privacy.errors import InputError
from ...privacy.files import check_memory
from ...privacy.guarantee import Statement, Unit
from ...training.accounts.accounted_run import takes_batch_size
from ...training.algorithms import Algorithm, Form, bind
from ...training.algorithms.algorithm import Bound
from ...training.algorithms.learning_rates import LearningRates, read_rates
from ...training.batches import Sampler, turns_of
from ...training.data.load import Dataset
from ...training.data.partition import check_cap, check_together, deal_users, partition, parts_held
from ...training.data.store import Shard
from ...training.engine.setting import Setting
from ...training.gradients.choice import BY_LAYER, with_layers
from ...training.graphs.graph import Topology
from ...training.graphs.participation import drawn_list, read_active_file, scheduled
from ...training.graphs.topologies import build_graph
from ...training.models.evaluation import NOT_COUNTED, evaluate
from ...training.models.losses import NetworkLoss, loss_named
from ...training.models.metrics import Metrics
from ...training.models.parameters import build_model, sizes_of, validate_model
from ...training.models.tasks import AreaUnderCurve, ClassWeights, Task, with_centres
from ...training.own.names import algorithm_named
from ...training.tracing.trace import trace
from .cross_checks import cap_problems
from .run_file import RunFile
from .tables import ModelTable, find_device

_DELTA = 1e-5
_LEAST_COPIES = 3  # of all models at once: the models, their gradients, and noise


def graph_of(config: RunFile) -> Topology:
    """The graph of a run file, with its list of who takes part where there is one."""
    # The graph by its name.
    g = config.graph
    graph = build_graph(
        g.name,
        config.data.agents,
        weights=g.weights,
        columns=g.columns,
        edge_probability=g.edge_probability,
        seed=g.seed,
        path=g.path,
        graphs=g.graphs if g.name == "random-digraph" else None,
        window=g.window,
    )
    p = config.participation
    if p is None or p.missing is not None:
        return graph
    # Who takes part in which round, by a public seed or a file.
    agents, rounds = graph.agents, config.training.rounds
    if p.path is None:
        active = drawn_list(
            agents,
            rounds,
            probability=p.probability,
            agents_per_round=p.agents_per_round,
            seed=p.seed,
        )
        return scheduled(graph, active, told=f"public list, seed {p.seed}")
    active = read_active_file(Path(p.path).expanduser(), agents=agents)
    if len(active) < rounds:
        raise InputError(
            f"[participation] path={p.path!r} says who takes part in {len(active)} rounds, but "
            f"rounds={rounds}; give a row for each round"
        )
    return scheduled(graph, active[:rounds], told="public list of a file")


def missing_of(config: RunFile) -> int:
    """How many agents may be missing from a round although nobody knew it."""
    return 0 if config.participation is None else config.participation.missing or 0


def data_of(config: RunFile) -> Dataset:
    """The data set of a run file, less what it keeps for validation."""
    found = config.data.read()
    if config.training.gradient_norm:
        found = replace(found, notes=(*found.notes, f"{NOT_COUNTED}."))
    return found.with_validation(share) if (share := config.data.validation) else found


def records_of(config: RunFile, data: Dataset) -> float:
    """Public number of records of an average agent."""
    return len(data.targets) / config.data.agents


def parts_of(config: RunFile, data: Dataset) -> list[NDArray[np.int64]]:
    """By agent the indices of its records in the training part of the data set.

    Raises:
        ValueError: they cannot be dealt so, or a user or an agent has more than a public cap.
    """
    if data.users is not None:
        parts = _parts_by_user(config, data.users)
    elif data.held_by is not None:
        parts = parts_held(data.held_by, config.data.agents)
    else:
        parts = partition(
            data.targets.numpy(),
            config.data.agents,
            scheme=config.data.partition,
            concentration=config.data.concentration,
            shards=config.data.shards,
            generator=np.random.default_rng(config.training.seed),
        )
    config.data.check_held(max(map(len, parts)))
    return parts


def _parts_by_user(config: RunFile, users: Tensor) -> list[NDArray[np.int64]]:
    """The same, with all records of a user at one agent, and no more than the cap."""
    if config.data.partition != "iid":
        raise InputError(
            f"partition={config.data.partition!r} deals by class, and the records of a user stay "
            'together; use "iid"'
        )
    privacy = config.privacy
    if privacy is not None and privacy.noise_multiplier != 0:
        if problems := cap_problems(privacy):
            raise InputError(problems[0])
        check_cap(users, privacy.records_per_person)
    generator = np.random.default_rng(config.training.seed)
    parts = deal_users(users, config.data.agents, generator=generator)
    check_together(users, parts)
    return parts


def statement_of(config: RunFile) -> Statement:
    """What every epsilon of the run is said of; delta is 1e-5 where there is no [privacy]."""
    p = config.privacy
    if p is None:
        return Statement(delta=_DELTA)
    return Statement(
        delta=p.delta,
        adjacency=Adjacency(p.adjacency),
        unit=Unit(p.unit),
        accountant=Accountant(p.accountant),
        records_per_person=p.records_per_person,
        holders=p.held_by,
    )


def says_whose(config: RunFile, data: Dataset | None) -> bool:
    """Whether the data say whose a record is, so that training checks the cap on a user's."""
    return config.data.user is not None or (data is not None and data.users is not None)


def clip_norm_of(config: RunFile) -> float | None:
    """The clip norm, None where nothing is clipped."""
    if config.privacy is None or math.isinf(config.privacy.clip_norm):
        return None
    return config.privacy.clip_norm


def sampling_rate_of(config: RunFile, data: Dataset | None) -> float:
    """The sampling rate, from the expected batch size where that is given."""
    t = config.training
    if t.sampling_rate is not None:
        return t.sampling_rate
    if t.batch_size is None or data is None:
        raise InputError("[training] needs sampling_rate or batch_size")
    rate = t.batch_size * config.data.agents / len(data.targets)
    if rate > 1:
        remedy = "lower it or use sampling_rate=1" if t.batches == "poisson" else "lower it"
        raise InputError(
            f"batch_size={t.batch_size:g} is more than the {len(data.targets)} records spread over "
            f"{config.data.agents} agents can give; {remedy}"
        )
    return rate


def from_records_of(config: RunFile) -> tuple[str, ...]:
    """What a run computes from the number of all records, in words."""
    algorithm = algorithm_named(config.algorithm.name)
    of = {
        "the sampling rate": config.training.sampling_rate is None,
        "the normaliser of a batch's sum": takes_batch_size(algorithm),
        "the start": algorithm.needs_records,
    }
    return tuple(words for words, there in of.items() if there)


def drawn_of(config: RunFile, data: Dataset | None) -> tuple[Drawing, ...] | None:
    """How every agent draws its batches; None where each record is drawn on its own.

    Raises:
        ValueError: a size that some agent cannot draw, or no data to count.
    """
    t = config.training
    if not draws_otherwise(config):
        return None
    if data is None:
        raise InputError(f"batches={t.batches!r} needs the number of records of every agent")
    return drawings(
        t.batches,
        [len(part) for part in parts_of(config, data)],
        batch_size=t.batch_size,
        sampling_rate=sampling_rate_of(config, data),
        largest_batch=t.largest_batch,
    )


def draws_otherwise(config: RunFile) -> bool:
    """Whether batches are not Poisson, or are cut, so that numbers of records count."""
    t = config.training
    return t.batches != "poisson" or t.largest_batch is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The objects of a run.

    Attributes:
        setting: graph, model, shards, rate and device.
        form, settings: published or repaired, and its own hyper-parameters.
        batch_size: public normaliser: the expected batch size of an average agent.
        clip_norm: None where nothing is clipped.
        learning_rate, rounds, gradient_norm: as in the run file.
    """

    data: Dataset
    setting: Setting
    algorithm: Algorithm
    form: Form
    settings: Any
    batch_size: float
    clip_norm: float | None
    learning_rate: LearningRates
    rounds: int
    gradient_norm: bool = False

    def bound(self, noise_multiplier: float) -> Bound:
        """The algorithm with all its numbers, at a noise multiplier."""
        return bind(
            self.algorithm,
            self.settings,
            form=self.form,
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            noise_std=self.noise_std(noise_multiplier),
            batch_size=self.batch_size,
            graph=self.setting.graph,
            rounds=self.rounds,
            records=len(self.data.targets) / self.setting.graph.agents,
        )

    def measured(self, models: Tensor, *, round: int) -> Metrics:
        """Test metrics of the agents' models (A, D) after a round."""
        return evaluate(
            self.setting.model,
            models,
            self.data.measured,
            round=round,
            task=self.setting.task,
            optimum=self.data.optimum,
            gradient_of=self.data.train if self.gradient_norm else None,
        )

    @property
    def by_user(self) -> bool:
        """Whether the step draws or clips by user."""
        if self.setting.users is None:
            return False
        bound, graph = self.bound(1.0), self.setting.graph
        made = trace(bound.init, bound.step, graph=graph, rounds=self.rounds, noise_multiplier=None)
        return made.scripts.by_user

    def noise_std(self, noise_multiplier: float) -> float:
        """Noise on the sum of gradients; the multiplier itself where nothing is clipped."""
        return noise_multiplier * (1.0 if self.clip_norm is None else self.clip_norm)


def check_classes(built: Built) -> None:
    """Refuse what reads labels where numbers are predicted.

    Raises:
        ValueError: the data set has no classes.
    """
    if built.data.outputs:
        raise InputError(
            f"{built.data.name!r} has numbers to predict and no classes; membership is inferred "
            "from the probability of a record's label; audit the run with canaries instead"
        )


def check_poisson(built: Built, what: str) -> None:
    """Refuse what adds records to a run, or takes some away, where batches are not Poisson.

    Args:
        what: would be done, as a sentence begins.

    Raises:
        ValueError: batches are drawn otherwise, or cut.
    """
    setting = built.setting
    if setting.sampler is not None or setting.turns is not None:
        how = "in turns" if setting.sampler is None else f"'{setting.sampler.scheme}'"
        raise InputError(
            f"{what} with other records than those of the run, and batches that are {how} would "
            "then be others, of which nothing is proven; "
            "do so for a run of batches = 'poisson' without largest_batch"
        )
    if built.by_user:
        raise InputError(
            f"{what} with other records than those of the run, and where sums are clipped by user "
            "no one says whose these would be: what users lose is not measured"
        )


def _check_layout(config: RunFile, model: nn.Module, inputs: Tensor) -> None:
    """Refuse a layout by layers where one record might change the gradient of another."""
    layout = config.training.layout
    if layout not in BY_LAYER:
        return
    if isinstance(reason := with_layers(model, inputs[:1]), str):
        raise InputError(
            f"[training] layout={layout!r} takes examples together, and nothing shows that they do "
            f'not mix in this model: {reason}; use layout = "vmap", or leave it out'
        )


def with_task(model: nn.Module, table: ModelTable, data: Dataset) -> tuple[nn.Module, Task | None]:
    """A network whose parameters are trained, and for what; no task is its cross-entropy.

    Raises:
        ValueError: a loss, or a number of classes, that does not fit.
    """
    if table.task == "auc":
        if data.classes != 2:
            raise InputError(
                '[model] task="auc" tells one class from another, and there are classes='
                f"{data.classes} in [data]; use data of two classes"
            )
        return with_centres(model), AreaUnderCurve(model, positive_share=table.positive_share)
    if table.task == "class-weights":
        return model, ClassWeights(
            model,
            classes=data.classes,
            strength=table.strength,
            penalty=table.penalty,
            penalty_steepness=table.penalty_steepness,
        )
    if (table.loss or "cross-entropy") == "cross-entropy":
        return model, None
    found = loss_named(table.loss or "", classes=data.classes, outputs=data.outputs)
    return model, NetworkLoss(model, found, regression=data.outputs > 0)


def build(config: RunFile, *, device: torch.device | None = None) -> Built:
    """Load the data, make the partition, the graph and the model.

    Args:
        device: where rounds compute, in place of what [training] device says.
    """
    device = device or find_device(config.training.device, rounds=True)
    # Data and how records are drawn come first, since they refuse most cheaply.
    data, rounds = data_of(config), config.training.rounds
    rate = sampling_rate_of(config, data)
    seed, parts, drawn = config.training.seed, parts_of(config, data), drawn_of(config, data)
    graph = graph_of(config)  # only now: a graph of more agents than there are records takes long
    # The network, of which every agent holds copies.
    model = build_model(
        config.model.name,
        input_shape=data.input_shape,
        classes=data.width,
        regression=data.outputs > 0,
        generator=torch.Generator().manual_seed(seed),
    )
    validate_model(model)
    agents, size = config.data.agents, sum(sizes_of(model))
    check_memory(
        f"a run of agents={agents} with {size} parameters each",
        _LEAST_COPIES * 4 * agents * size,
        "lower [data] agents, or choose a smaller [model] name",
    )
    _check_layout(config, model, data.train.take(torch.zeros(1, dtype=torch.int64)).inputs)
    # The loss and the task that goes with it.
    model, task = with_task(model, config.model, data)
    model = model.to(device)  # with its buffers, which evaluations, tasks and canaries read there
    store = data.train
    shards = [Shard(store, torch.from_numpy(part)) for part in parts]
    return Built(
        data=data,
        setting=Setting(
            graph=graph,
            model=model,
            shards=shards,
            sampling_rate=rate,
            device=device,
            layout=config.training.layout,
            task=task,
            repeats=config.training.evaluation_noise_seed is not None,
            sampler=None if drawn is None else Sampler(drawn=drawn, order_seed=seed),
            turns=turns_of(config.pattern, shards, rounds=rounds, sampling_rate=rate, seed=seed),
            order_seed=seed,
            users=None if data.users is None else [data.users[part] for part in parts],
        ),
        algorithm=algorithm_named(config.algorithm.name),
        form=Form(config.algorithm.form),
        settings=config.algorithm.settings(),
        batch_size=max(rate * records_of(config, data), math.ulp(1.0)),
        clip_norm=clip_norm_of(config),
        learning_rate=read_rates(config.training.learning_rate),
        rounds=rounds,
        gradient_norm=config.training.gradient_norm,
    )
