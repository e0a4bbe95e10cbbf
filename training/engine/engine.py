"""The engine: all agents of a run, in one process or spread over ranks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, cast

import torch
from torch import Tensor

from ...privacy.batches.sampling import Per, Scheme
from ...privacy.errors import InputError
from ..algorithms.algorithm import Bound
from ..batches import Place, check_records, drawn_positions, taking_part
from ..data.store import Examples, Held, SideBySide, moved, placed
from ..device.precision import check_numbers, computing, on_device
from ..gradients.counts import Counts
from ..gradients.gradients import ClippedSums, PairGradients
from ..models.evaluation import AT_ONCE, evaluate
from ..models.losses import FailedForward, is_for_the_loop
from ..models.parameters import flatten
from ..noise_tests.noise_tests import NoiseTests, RoundNoise
from ..own.contents import Watch
from ..step.floor import Floor
from ..step.operations import Operations
from ..step.perform import perform
from ..step.script import no_projection
from ..step.values import Agents, Cohort
from ..tracing.scripts import Scripts, ScriptsOnDemand, state_column
from .exchange import Ranks, check_fit, check_same_root, gather, share_root, warm_up
from .links import Gathered, Links
from .randomness import Purpose, SecretRandomness
from .recording import KeptNoise, Recorded, Recording
from .setting import Setting
from .tensor_round import AllRounds, Drawing, PublicValues, TensorRound
from .transcript import Tap


class Engine:
    """Runs an algorithm.

    Args:
        setting: graph, model and data.
        bound: the algorithm with its numbers.
        randomness: noise and batches; of the system's entropy when None, of rank 0's with ranks.
        taps: called with every message before it is delivered; with ranks, of what this rank's
            agents send. Rank 0 hears rounds that are `Gathered` whole; every rank names the same.
        gradients: in place of the setting's own layout, for audits.
        ranks: this process among those that run the agents; each makes an engine of the same
            setting and calls the same methods in the same order. Shards of other ranks' agents
            give their lengths alone and stay where they are.
        scripts: what every round has to follow, those of a plan's trace; without them each round
            is traced before it is carried out.
        noise_tests: tests the noise of every round before it is sent; none when None.

    Raises:
        ValueError: weights or a task that do not fit the algorithm, ranks of other agents, a device
            that they do not serve, or roots that differ from rank to rank.
        MissingRank: some rank did not answer in time; raised by every method that exchanges rows.
    """

    keeps_to_turns = True

    def __init__(
        self,
        setting: Setting,
        bound: Bound,
        *,
        randomness: SecretRandomness | None = None,
        taps: Sequence[Tap | Gathered] = (),
        gradients: ClippedSums | None = None,
        ranks: Ranks | None = None,
        scripts: Scripts | None = None,
        noise_tests: NoiseTests | None = None,
    ) -> None:
        # What has to fit: blocks, graph, ranks, and the numbers of records.
        blocks = len(setting.task.dimensions) if setting.task else 1
        check_fit(bound, setting.graph, blocks=blocks, ranks=ranks)
        check_records(setting.sampler, [shard.size for shard in setting.shards])
        if ranks is not None:
            warm_up(ranks, device=setting.device)
        self.setting, self.taps = setting, tuple(taps)
        self.ranks, self._bound, self._noise_tests = ranks, bound, noise_tests
        self.scripts: Scripts = scripts or ScriptsOnDemand(
            bound.init, bound.step, graph=setting.graph
        )
        self.scripts.check_setting(setting)

        # The root of the randomness; without one of the caller's each start draws another.
        self._draws_own_root = randomness is None
        self._randomness = randomness or self._fresh_randomness()

        # What rounds need and none changes: links, gradients, the initial model, records.
        self._links_of = functools.lru_cache(64)(  # of the latest graphs
            functools.partial(Links, device=setting.device, dtype=setting.dtype, ranks=ranks)
        )
        initial = setting.task.initial() if setting.task else flatten(setting.model)
        self._every = AllRounds(
            initial.detach().to(setting.device, setting.dtype),
            sizes=setting.task.dimensions if setting.task else (len(initial),),
            gradients=gradients or gradients_of(setting),
            projection=setting.task.project if setting.task else no_projection,
            counts=functools.cache(functools.partial(_counts_of, setting)),
        )
        self._mine = range(setting.graph.agents) if ranks is None else ranks.mine
        self._shards = {agent: self._placed(setting.shards[agent]) for agent in self._mine}
        self._together = SideBySide.of(self._shards, setting.device)
        self._shards |= self._together.shards if self._together else {}

        # How far the run is: a round that failed is not tried again under the same noise.
        self.round, self._kept = 0, self.setting.kept()
        self.state: Any = None
        self._failed = False
        self._public: PublicValues | None = None  # of the next round, once they were looked at

    def _fresh_randomness(self) -> SecretRandomness:
        """A new root of the system's entropy, the same on every rank."""
        if self.ranks is None:
            return SecretRandomness()
        return SecretRandomness(share_root(self.ranks, device=self.setting.device))

    def draw_batch(
        self, *, round: int, call: int, agent: int, rate: float | None, per: Per = Per.RECORD
    ) -> Tensor:
        """(B,) ascending positions of one batch in an agent's shard, as the run draws it; on host.

        Args:
            round: the number of the round.
            call: the number of the call of `draw` within the round.
            agent: whose shard.
            rate: the sampling rate; None is the run's.
            per: whether each record has a coin, or each user.
        """
        chosen = drawn_positions(
            self.setting.sampler,
            records=self.setting.shards[agent].size,
            sampling_rate=self.setting.sampling_rate,
            at=Place(round, call, agent, rate),
            generator=self._randomness.passing_stream(
                Purpose.BATCH, round=round, call=call, row=agent
            ),
            users=self.setting.users_of(agent) if Per(per) is Per.USER else None,
            turns=self.setting.turns,
        )
        return torch.from_numpy(chosen)

    def draw_cohort(self, cohort: Cohort, *, round: int) -> Tensor:
        """(agents that are here, 1) whether each is in a secret cohort, as the run draws it.

        Args:
            cohort: of a call within the round.
            round: the number of the round.
        """
        call, randomness = cohort.call, self._randomness
        if cohort.scheme is Scheme.POISSON:
            return randomness.coins(round=round, call=call, rows=self._mine, rate=cohort.rate)
        every = taking_part(
            cohort,
            agents=self.setting.graph.agents,
            round=round,
            order_seed=self.setting.order_seed,
            generator=randomness.stream(Purpose.FIXED_COHORT, round=round, call=call, row=0),
        )
        return torch.from_numpy(every[self._mine.start : self._mine.stop])[:, None]

    def _make_round(
        self,
        index: int,
        *,
        planted: Mapping[int, Examples],
        recorded: Recorded | None,
        to_taps: bool = True,
        public: PublicValues | None = None,
    ) -> Operations:
        if recorded is not None and self.ranks is not None:
            raise InputError(
                "recorded holds what all agents drew, which no rank has; leave out one of the two"
            )
        randomness = self._randomness if recorded is None else KeptNoise(self._randomness, recorded)

        # Where the round is, and whose records each call draws.
        graph = self.setting.graph.at(index)
        links, nothing = self._links_of(graph), torch.zeros(0, dtype=torch.int64)

        whose = dict[int, list[Tensor | None]]()  # by call

        # A call's batches: planted examples take an agent's place, and absent agents have none.
        def draw(call: int, rate: float | None, per: Per) -> list[Examples]:
            how = {} if per is Per.RECORD else {"per": per}
            drawn = {
                agent: self.draw_batch(round=index, call=call, agent=agent, rate=rate, **how)
                for agent in self._mine
                if agent not in planted and agent not in graph.absent
            } | {agent: nothing for agent in graph.absent if agent in self._mine}
            if self.keeps_to_turns:
                self._kept.note({agent: at.numpy() for agent, at in drawn.items()}, round=index)
            if recorded is not None:
                recorded.batches.append([drawn.get(agent) for agent in self._mine])
            whose[call] = [self.setting.whose(agent, drawn.get(agent)) for agent in self._mine]
            return taken(drawn)

        def taken(where: Mapping[int, Tensor]) -> list[Examples]:
            found = self._taken(where)
            return [found.get(a) or self._on_device(planted[a]) for a in self._mine]

        def take_all() -> list[Examples]:
            held = {a: torch.arange(s.size) for a, s in self._shards.items() if a not in planted}
            return taken(held | {a: nothing for a in graph.absent if a in self._mine})

        def draw_cohort(cohort: Cohort) -> Tensor:
            found = self.draw_cohort(cohort, round=index)
            if recorded is not None:
                recorded.cohorts.append(found)
            return found

        # The round, with all that its operations need.
        made = TensorRound(
            links,
            self._every,
            index=index,
            drawing=Drawing(draw, whose.__getitem__, take_all, draw_cohort),
            randomness=randomness,
            calls=None if recorded is None else recorded.functions,
            taps=self.taps if to_taps else (),
            public=public,
        )
        # A recording notes every operation around what carries it out.
        if recorded is not None:
            made.wrap(Recording(recorded, links=links, sizes=self._every.sizes))
        return made

    def _noise_of_round(self, index: int) -> RoundNoise | None:
        """Who tests the noise of a round, where it is tested."""
        if self._noise_tests is None:
            return None
        of = self._links_of(self.setting.graph.at(index))
        return self._noise_tests.of_round(index, of.places, active=of.active_rows)

    def _taken(self, where: Mapping[int, Tensor]) -> dict[int, Examples]:
        """The records at positions on the host, by agent, on the run's device."""
        there = self._together.shards if self._together else {}
        held = {a: at for a, at in where.items() if self._shards[a] is there.get(a)}
        found = self._together.take(held) if self._together else {}
        for agent in where.keys() - held.keys():
            shard, at = self._shards[agent], where[agent]
            at = on_device(at, self.setting.device) if isinstance(shard, Examples) else at
            found[agent] = self._on_device(shard.take(at))
        return found

    def _no_records(self, agent: int) -> Examples:
        shard = self._shards[agent]
        device = shard.inputs.device if isinstance(shard, Examples) else None
        return self._on_device(shard.take(torch.zeros(0, dtype=torch.int64, device=device)))

    def _placed(self, shard: Held) -> Held:
        return placed(shard, self.setting.device, self.setting.dtype)

    def _on_device(self, examples: Examples) -> Examples:
        return moved(examples, self.setting.device, self.setting.dtype)

    def start(self, *, recorded: Recorded | None = None) -> None:
        """Run the algorithm's `init`; started again, it draws fresh noise."""
        self._start(recorded=recorded, to_taps=True)

    def _start(self, *, recorded: Recorded | None, to_taps: bool) -> None:
        # Started again, a run must not release other values under the same noise.
        if self.state is not None:
            renew = self._fresh_randomness if self._draws_own_root else self._randomness.renewed
            self._randomness = renew()
        if self.ranks is not None:
            check_same_root(self._randomness, ranks=self.ranks, device=self.setting.device)
        # A start that only tells shapes sums over no records and tells no tap.
        nothing = {} if to_taps else {a: self._no_records(a) for a in self._mine}
        public, self._public = self._public_values(self.scripts.floor_of(0, None), number=0), None
        current = self._make_round(
            0, planted=nothing, recorded=recorded, to_taps=to_taps, public=public
        )
        self._failed = True
        self.setting.check_users(self.scripts.start)
        watch = self._noise_of_round(0) if to_taps else None
        with computing(self.setting.device, repeats=self.setting.repeats):
            done = perform(
                self._bound.init, current, number=0, planned=self.scripts.start, watch=watch
            )
            self.state = self._checked(done.state, number=0)
        self._failed = False
        self.round, self._kept = 0, self.setting.kept()

    def _checked(self, state: Any, *, number: int) -> Any:
        """The state of a round, once all that puts off looking at values has looked."""
        getattr(self._every.gradients, "check", lambda: None)()
        rows = {k: v.rows for k, v in state._asdict().items() if isinstance(v, Agents)}
        check_numbers(rows, first=self._mine.start, round=number)
        return state

    def advance(
        self, *, planted: Mapping[int, Examples] | None = None, recorded: Recorded | None = None
    ) -> None:
        """Run one round.

        Args:
            planted: agents whose batch is given instead of drawn, for attacks and audits.
            recorded: filled with what the round draws and computes, for checks and attacks.

        Raises:
            RuntimeError: the round failed before, after some of its messages may have left: once
                more under the same noise, it would uncover what the noise hides.
        """
        if self.state is None:
            self.start()
        if self._failed:
            raise RuntimeError(
                f"round {self.round + 1} failed when it was tried, and would be released under "
                "the same noise; make a new engine and restore a snapshot"
            )
        # What the round is held to: the floor of its noise, its script, and caps of users.
        number = self.round + 1
        self.check_floor()
        public, self._public = self._public, None
        current = self._make_round(number, planted=planted or {}, recorded=recorded, public=public)
        script = self.scripts.of(number, self.state)
        self.setting.check_users(script)
        # A round that fails may have sent messages, and must not run again.
        self._failed = True
        with computing(self.setting.device, repeats=self.setting.repeats):
            done = perform(
                self._bound.step,
                current,
                number=number,
                state=self.state,
                planned=script,
                watch=self._noise_of_round(number),
            )
            self.state = self._checked(done.state, number=number)
        self._failed = False
        self.round += 1

    def check_floor(self) -> None:
        """Compare the state with the floor of the next round, before that is announced.

        Every closed view holds the state, so that to stop by it tells nothing more.

        Raises:
            NoiseBelowRounding: a value is too large for the noise of the round.
        """
        if self._public is not None:
            return
        number = self.round + 1
        public = self._public_values(self.scripts.floor_of(number, self.state), number=number)
        for field, value in self.state._asdict().items():
            if isinstance(value, Agents):
                public.note(state_column(field), value.rows)
        self._public = public

    def check_start(self) -> None:
        """Start without data and without telling anybody, and compare that with the first floor.

        Raises:
            NoiseBelowRounding: a value is too large for the noise of the start or of round 1.
        """
        self._start(recorded=None, to_taps=False)
        self.check_floor()

    def _public_values(self, floor: Floor, *, number: int) -> PublicValues:
        tensors = [(name, p.numel()) for name, p in self.setting.model.named_parameters()]
        return PublicValues(floor, round=number, tensors=tensors, ranks=self.ranks)

    def _rows_of_all(self, value: Agents) -> Tensor:
        """The rows of all agents, on every rank."""
        if self.ranks is None:
            return value.rows
        shares = [self.ranks.share(rank) for rank in range(self.ranks.size)]
        return gather(value.rows, shares=shares, ranks=self.ranks)

    @property
    def layout(self) -> str:
        """The gradient layout in use, or "given" where the caller gave the gradients."""
        return getattr(self._every.gradients, "layout", "given")

    @property
    def settled(self) -> bool:
        """Whether the gradient layout is final."""
        return getattr(self._every.gradients, "settled", True)

    def models(self) -> Tensor:
        """(A, D) the models as they are now; with ranks all of them call, and all get them."""
        return self._rows_of_all(getattr(self.state, self._bound.release.model))

    def snapshot(self) -> dict[str, Tensor]:
        """The state by field, on the CPU; with ranks all of them call, and all get it whole."""
        return {
            name: (self._rows_of_all(value) if isinstance(value, Agents) else value)
            .detach()
            .to("cpu", copy=True)
            for name, value in self.state._asdict().items()
        }

    def restore(
        self, snapshot: Mapping[str, Tensor], *, round: int, turns: str | None = None
    ) -> None:
        """Continue from a whole snapshot taken after the given round; nothing is released by it.

        A run in turns goes on with those that it began with: `turns` is its `Setting.turns_digest`.

        Raises:
            ValueError: fields or shapes that are not those of the algorithm's state; other turns.
        """
        if self.setting.turns is not None:
            self.setting.turns.check_goes_on(turns)
        self._start(recorded=None, to_taps=False)  # for the kind and the shapes of the state

        # The snapshot is of all agents, wherever they run.
        held, agents = self.state._asdict(), self.setting.graph.agents
        shapes = {
            k: (agents, *v.rows.shape[1:]) if isinstance(v, Agents) else tuple(v.shape)
            for k, v in held.items()
        }
        given = {name: tuple(value.shape) for name, value in snapshot.items()}
        if shapes != given:
            raise InputError(f"snapshot holds {given}, but the algorithm's state is {shapes}")
        mine, to = slice(self._mine.start, self._mine.stop), self.setting
        fields = {
            k: Agents(v[mine].to(to.device, to.dtype)) if isinstance(held[k], Agents) else v
            for k, v in snapshot.items()
        }
        self.state, self.round, self._public = self.state._replace(**fields), round, None


def _counts_of(setting: Setting) -> Counts:
    return Counts(setting.task or setting.model, device=setting.device, dtype=setting.dtype)


def gradients_of(setting: Setting, *, drops: bool = True) -> ClippedSums:
    """The layout of per-example gradients that a run of the setting computes in."""
    return PairGradients(
        setting.task or setting.model,
        setting.layout,  # type: ignore[arg-type] # PairGradients checks the name
        device=setting.device,
        dtype=setting.dtype,
        agents=setting.graph.agents,
        batch_size=setting.sampling_rate * mean(s.size for s in setting.shards),
        drops=drops,
    )


# Before a run: code of the user is called on two records in every layout that may be chosen.
#
# What a network or a loss raises only where it is differentiated, and what it keeps from call to
# call, is told here, before anything was released. Both general layouts are tried whichever is
# asked for: under vmap a value that several records went into cannot be written to what lies
# outside, and the two differ where records meet in a rule for vmap. What vmap alone has no batch
# for, such as a branch on the data or a mask, is no error where the loop is asked for.

_FEW = 2
_GENERAL = ("loop", "vmap")
# By how much a gradient may differ from layout to layout, of its length.
_ROUNDING = 1e-2


def check_user_code(setting: Setting, test: Examples) -> None:
    """Call the network and the loss as a run does, if they are the user's; nothing is sent.

    Args:
        setting: of the run.
        test: records on which models are evaluated.

    Raises:
        InputError: the code raises something, keeps something, or lets records meet.
    """
    # A few records, one at a time, at the initial model.
    records = next((shard for shard in setting.shards if shard.size), None)
    if records is None:
        return
    few = records.take(torch.arange(min(_FEW, records.size)))
    batches = [(few.inputs[i : i + 1], few.targets[i : i + 1]) for i in range(len(few.targets))]
    first = setting.task.initial() if setting.task else flatten(setting.model)
    point = first.detach().to(setting.device, setting.dtype)[None]
    rows = range(len(batches))
    found = []
    # The loop and vmap, and the layout that is asked for.
    asked = () if setting.layout in _GENERAL else (setting.layout,)
    for layout in (*_GENERAL, *asked):
        gradients = cast("PairGradients", gradients_of(replace(setting, layout=layout)))
        if not gradients.runs_own_code:
            return
        # Code that keeps something from call to call shows it in another order.
        try:
            for row in (*rows, *rows[::-1]):  # one by one, and in another order
                gradients.clipped_sums(point, ([0], [0]), [batches[row]], clip_norm=1.0)
        except FailedForward as error:
            if layout != "vmap" or not is_for_the_loop(error):
                raise
            if setting.layout == "loop":
                continue
            raise FailedForward(f'{error}; layout = "loop" takes it as it is') from error
        _evaluate(setting, point, test)
        together = gradients.clipped_sums(
            point, ([0] * len(rows), list(rows)), batches, clip_norm=1.0
        )
        gradients.check()
        found.append(together)
    if len(found) > 1 and _differ(*found[:2]):
        raise InputError(
            "the network or its loss has other gradients for two records together, under vmap, "
            "than one by one; it must treat the examples of a batch separately"
        )


def _evaluate(setting: Setting, point: Tensor, test: Examples) -> None:
    """As a run does, which may fill a table, and on others, which must leave nothing behind."""

    def evaluate_on(at: slice) -> None:
        evaluate(
            copy.deepcopy(setting.model),  # to which it may write
            point[:, : flatten(setting.model).numel()],
            Examples(test.inputs[at], test.targets[at]),
            round=0,
            task=setting.task,
        )

    for most in (_FEW, AT_ONCE):
        evaluate_on(slice(most))
    with Watch(setting.model, setting.task).calls("the loss, or the network's forward,"):
        evaluate_on(slice(-_FEW, None))


def _differ(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) > _ROUNDING * float(one.norm())
