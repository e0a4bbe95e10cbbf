"""Time of one round's gradients by layout, and whether the rule picks the fastest one.

    OMP_NUM_THREADS=1 python benchmarks/engine.py            # the tables take minutes
    OMP_NUM_THREADS=1 python benchmarks/engine.py --quick    # fewer rounds, no loop
    OMP_NUM_THREADS=1 python benchmarks/engine.py --part rule
    OMP_NUM_THREADS=1 python benchmarks/engine.py --only transformer    # one row of the goals

The rule: for each network and work every layout's time, what `overhear.training.layout_choice`
takes, and its time over that of the fastest, as the median of ratios within a round of measurement.
Layouts take turns, 11 times, or at least 3 times where a case takes more than 3 seconds; a layout
that takes milliseconds is repeated until it takes 30.

The layouts beside opacus and beside gradients without privacy: LeNet (61,706 parameters) and a
network of wider convolutions ("cnn"), 1x28x28, 10 agents, 32 examples each, float32. A round is the
clipped gradient sum of every pair: 30 pairs on a ring, 100 on a full graph, self-loops included.
All rows are measured in turn within each round of measurement; the table has the median over the
rounds. "Plain" rows give up the clip: the same sums by one forward and one backward a pair, and
only one sum a model owner.

The goals (`goals.py`): networks on which layouts were slow, beside the same and torch.func.

Times are the process's own CPU time with one thread; with CUDA tables of wall time follow. Whole
rounds: benchmarks/rounds.py.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable

import goals
import torch
from layout_cases import CASES, Case, networks
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overhear.runs.stop import keep_freed_memory
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import build_model, flatten, unflatten

AGENTS, EXAMPLES, CLIP_NORM = 10, 32, 0.5
LAYOUTS = ("book-keeping", "grouped", "vmap")
# Most examples over all pairs for which the loop is measured; least seconds of one measurement, and
# seconds of a case after which its rounds end.
LOOP_EXAMPLES, LEAST_SECONDS, ENOUGH_SECONDS = 400, 0.03, 3.0
Pairs = tuple[list[int], list[int]]
Batches = list[tuple[Tensor, Tensor]]
Round = Callable[[], Tensor]


def edges(graph: str, agents: int = AGENTS) -> Pairs:
    """Senders and receivers sorted by (receiver, sender)."""
    near = {"own": {0}, "ring": {0, 1, agents - 1}, "full": set(range(agents))}[graph]
    found = [(d, m) for d in range(agents) for m in sorted((d + o) % agents for o in near)]
    return [m for _, m in found], [d for d, _ in found]


def fill(model: nn.Module, flat: Tensor) -> None:
    """Copy flat parameters into a model."""
    for name, part in unflatten(model, flat).items():
        model.get_parameter(name).data.copy_(part)


def grad_sample(model: nn.Module, models: Tensor, pairs: Pairs, batches: Batches) -> Tensor:
    """Opacus with per-example gradients, pair by pair."""
    wrapped = GradSampleModule(model, loss_reduction="sum")
    parameters = list(wrapped.parameters())
    out = torch.empty(len(pairs[0]), models.shape[1], device=models.device)
    for e, (m, d) in enumerate(zip(*pairs, strict=True)):
        fill(model, models[m])
        inputs, targets = batches[d]
        cross_entropy(wrapped(inputs), targets, reduction="sum").backward()
        samples = [p.grad_sample for p in parameters]
        norms = torch.stack([g.flatten(1).norm(2, dim=1) for g in samples], 1).norm(2, dim=1)
        factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
        out[e] = torch.cat([torch.einsum("b,b...", factors, g).flatten() for g in samples])
        for p in parameters:
            p.grad = p.grad_sample = None
    wrapped.remove_hooks()
    return out


def ghost(model: nn.Module, models: Tensor, pairs: Pairs, batches: Batches) -> Tensor:
    """Opacus with ghost clipping, pair by pair: two backward passes each."""
    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    parameters = list(wrapped.parameters())
    out = torch.empty(len(pairs[0]), models.shape[1], device=models.device)
    for e, (m, d) in enumerate(zip(*pairs, strict=True)):
        fill(model, models[m])
        inputs, targets = batches[d]
        losses = cross_entropy(wrapped(inputs), targets, reduction="none")
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef().detach()
        for p in parameters:
            p.grad = None
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        wrapped.enable_hooks()
        out[e] = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        for p in parameters:
            p.grad = None
    wrapped.remove_hooks()
    return out


def plain(model: nn.Module, models: Tensor, pairs: Pairs, batches: Batches) -> Tensor:
    """No clipping, one forward and backward a pair."""
    parameters = list(model.parameters())
    out = torch.empty(len(pairs[0]), models.shape[1], device=models.device)
    for e, (m, d) in enumerate(zip(*pairs, strict=True)):
        fill(model, models[m])
        inputs, targets = batches[d]
        loss = cross_entropy(model(inputs), targets, reduction="sum")
        found = torch.autograd.grad(loss, parameters)
        out[e] = torch.cat([g.flatten() for g in found])
    return out


def stacked(model: nn.Module, models: Tensor, pairs: Pairs, batches: Batches) -> Tensor:
    """No clipping, only the sum over all the data a model owner meets."""
    parameters = list(model.parameters())
    out = torch.empty_like(models)
    for m in range(len(models)):
        fill(model, models[m])
        near = [d for s, d in zip(*pairs, strict=True) if s == m]
        inputs = torch.cat([batches[d][0] for d in near])
        targets = torch.cat([batches[d][1] for d in near])
        loss = cross_entropy(model(inputs), targets, reduction="sum")
        out[m] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    return out


PEERS = {
    "opacus GradSampleModule, a pair": grad_sample,
    "opacus ghost clipping, a pair": ghost,
    "plain, a pair": plain,
}


def rows(network: str, graph: str, *, device: str, quick: bool) -> dict[str, Round]:
    """What is measured, by its name in the table."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(network, input_shape=(1, 28, 28), classes=10, generator=generator)
    model.to(device)
    start = flatten(model)
    noise = 0.02 * torch.randn(AGENTS, len(start), generator=generator)
    models = start + noise.to(device)  # (A, D)
    batches = [
        (
            torch.randn(EXAMPLES, 1, 28, 28, generator=generator).to(device),
            torch.randint(10, (EXAMPLES,), generator=generator).to(device),
        )
        for _ in range(AGENTS)
    ]
    pairs = edges(graph)

    def layout(name: str) -> Round:
        engine = PairGradients(model, name)  # type: ignore[arg-type]  # the literals below
        return lambda: engine.clipped_sums(models, pairs, batches, clip_norm=CLIP_NORM)

    measured: dict[str, Round] = {} if quick else {"loop, one example at a time": layout("loop")}
    return measured | {
        "opacus GradSampleModule, a pair": lambda: grad_sample(model, models, pairs, batches),
        "opacus ghost clipping, a pair": lambda: ghost(model, models, pairs, batches),
        "vmap by model owner": layout("vmap"),
        "grouped over model owners": layout("grouped"),
        "book-keeping by model owner": layout("book-keeping"),
        "plain, a pair": lambda: plain(model, models, pairs, batches),
        "plain, only the sum by owner": lambda: stacked(model, models, pairs, batches),
    }


def work_of(case: Case, *, device: str) -> tuple[nn.Module, Tensor, Pairs, Batches]:
    """A network, its models (A, D), pairs and batches."""
    build, shape, tokens = networks()[case.network]
    torch.manual_seed(0)
    model, generator = build().to(device), torch.Generator().manual_seed(0)
    sizes = torch.full((case.agents,), float(case.examples))
    if case.poisson:
        sizes = torch.poisson(sizes, generator=generator)
    start = flatten(model)
    noise = 0.02 * torch.randn(case.agents, len(start), generator=generator)
    batches = []
    for n in sizes.int().tolist():
        inputs = torch.randn(n, *shape, generator=generator)
        if tokens is not None:
            inputs = torch.randint(tokens, (n, *shape), generator=generator)
        targets = torch.randint(10, (n,), generator=generator)
        batches.append((inputs.to(device), targets.to(device)))
    return model, start + noise.to(device), edges(case.graph, case.agents), batches


def judge(case: Case, *, device: str, rounds: int, loop: bool, clock: Callable[[], float]) -> str:
    """A line of the table of the rule."""
    model, models, pairs, batches = work_of(case, device=device)

    def layout(name: str) -> tuple[Round, PairGradients]:
        engine = PairGradients(model, name)  # type: ignore[arg-type]  # the literals of LAYOUTS
        return lambda: engine.clipped_sums(models, pairs, batches, clip_norm=CLIP_NORM), engine

    run, engine = layout("auto")
    run()
    choice = engine.layout
    runs = {name: layout(name)[0] for name in LAYOUTS}
    repeats = {}
    for name, run in runs.items():  # the first call compares with the loop
        run()
        start = clock()
        run()
        repeats[name] = math.ceil(LEAST_SECONDS / max(clock() - start, 1e-4))
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun = clock()
    for done in range(rounds):
        if done >= 3 and clock() - begun > ENOUGH_SECONDS:
            break
        for name, run in runs.items():
            start = clock()
            for _ in range(repeats[name]):
                run()
            times[name].append(1e3 * (clock() - start) / repeats[name])
    ratio = max(
        statistics.median(mine / other for mine, other in zip(times[choice], found, strict=True))
        for found in times.values()
    )
    slow = ""
    if loop and case.examples * len(pairs[0]) <= LOOP_EXAMPLES:
        start = clock()
        layout("loop")[0]()
        slow = f"{1e3 * (clock() - start):.0f}"
    cells = [f"{statistics.median(found):.1f}" for found in times.values()]
    about = "about " if case.poisson else ""
    return (
        f"| {case.network} | {case.graph} | {case.agents} | {about}{case.examples} | "
        f"{' | '.join(cells)} | {slow} | {choice} | {ratio:.2f} |"
    )


def measure(runs: dict[str, Round], *, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each, the runs taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in runs.items():
        if name != "loop, one example at a time":
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def cuda_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def compare(runs: dict[str, Round]) -> float:
    """Largest distance of a median pair between the clipped layouts, relative to its norm."""
    ours = runs["book-keeping by model owner"]()
    others = [runs[n]() for n in runs if n.startswith(("opacus", "vmap", "grouped"))]
    return max(float(((x - ours).norm(dim=1) / ours.norm(dim=1)).median()) for x in others)


def table_of_the_rule(
    device: str, unit: str, clock: Callable[[], float], *, quick: bool, only: str | None
) -> None:
    """Print what the rule takes for each case beside every layout's time."""
    print(
        f"\n| {device} | graph | agents | examples | {' | '.join(LAYOUTS)} | loop | rule | / best |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---|---:|")
    for case in CASES:
        if only in (None, case.network):
            rounds = 3 if quick else 11
            print(
                judge(case, device=device, rounds=rounds, loop=not quick, clock=clock), flush=True
            )
    print(f"\n{unit}, but for the last two columns.")


def tables_beside_others(
    device: str, unit: str, clock: Callable[[], float], *, quick: bool, only: str | None
) -> None:
    """Print the layouts beside opacus and beside gradients without privacy."""
    for network, graph in itertools.product(("lenet", "cnn"), ("ring", "full")):
        if only not in (None, network):
            continue
        runs = rows(network, graph, device=device, quick=quick)
        found = measure(runs, rounds=2 if quick else 7, clock=clock)
        ours = found["book-keeping by model owner"]
        print(f"\n| {network}, {graph}, {len(edges(graph)[0])} pairs | {unit} | times ours |")
        print("|---|---:|---:|")
        for name, milliseconds in found.items():
            print(f"| {name} | {milliseconds:.0f} | {milliseconds / ours:.2f} |")
        print(f"\nThe median pair agrees to {compare(runs):.0e} between the clipped layouts.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, without the loop")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="one device; all by default")
    parser.add_argument("--part", choices=("rule", "others", "goals"), help="one part")
    parser.add_argument("--only", choices=tuple(goals.GOALS), help="one network of the goals")
    parser.add_argument("--model", choices=tuple(networks()), help="one network")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook")
    torch.set_num_threads(1)
    keep_freed_memory()
    devices = [("cpu", time.process_time, "CPU ms")]
    if torch.cuda.is_available():
        devices.append(("cuda", cuda_clock, "CUDA wall ms"))
    devices = [device for device in devices if chosen.device in (None, device[0])]
    if not devices:
        parser.error("--device cuda: no CUDA device is there")
    for device, clock, unit in devices:
        if chosen.only is None and chosen.part in (None, "rule"):
            table_of_the_rule(device, unit, clock, quick=chosen.quick, only=chosen.model)
        if chosen.only is None and chosen.part in (None, "others"):
            tables_beside_others(device, unit, clock, quick=chosen.quick, only=chosen.model)
        if device == "cpu" and (chosen.only is not None or chosen.part in (None, "goals")):
            goals.table(PEERS, clock=clock, quick=chosen.quick, only=chosen.only)


if __name__ == "__main__":
    main()
