"""Functions for many agents at once: what vmap may be used for, and that it changes nothing."""

import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine import recording as function_calls
from overhear.training.engine.engine import Engine
from overhear.training.engine.links import Links
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Argument, Calls, KeptCalls, Recorded, called
from overhear.training.graphs.topologies import erdos_renyi, full, ring, star
from overhear.training.step import script
from overhear.training.step.purity import purified
from overhear.training.step.script import runs_batched
from overhear.training.step.values import Agents, Edges
from tests.training.contract import bound_to, setting

GRAPHS = [ring(7), full(4), star(6), erdos_renyi(9, 0.4, seed=3)]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget():
    script._found.clear()


@pytest.fixture
def on_a_device(monkeypatch):
    """Agents are taken together although the device is the CPU; which functions were."""
    taken = []
    together = function_calls._batched

    def noted(fn, arguments, **how):
        found = together(fn, arguments, **how)
        taken.append((fn.name, found is not None))
        return found

    monkeypatch.setattr(function_calls, "_together", lambda device, calls: not calls.one_by_one)
    monkeypatch.setattr(function_calls, "_batched", noted)
    return taken


def _writes(x, rows):
    rows.mul_(2.0)
    x += rows.sum(0)
    return x


def _branches(x, rows):
    return x if rows.sum() > 0 else -x


def _counts(x, rows):
    return x * float((rows > 0).sum())


def _by_numpy(x, rows):
    import numpy as np

    return x + torch.from_numpy(np.asarray(rows.sum(0)))


def _fills(x, rows):
    out = torch.zeros_like(x)
    out.copy_(rows.sum(0))
    return out


def _into_a_constant(x, rows):
    out = torch.zeros(len(x), dtype=x.dtype)
    out.copy_(rows.sum(0))  # vmap refuses: a constant has one row, and each agent its own
    return out


def _raises(x, rows):
    return torch.linalg.cholesky(rows @ rows.T - 1e9) @ x


def _sorts(x, rows):
    return rows.sort(dim=0).values[0] + x.unique()[0]


FUNCTIONS = {
    "rows": (lambda x, rows: x + rows.mean(0), True),
    "norms": (lambda x, rows: x / (1 + torch.linalg.vector_norm(rows)), True),
    "own vmap": (lambda x, rows: torch.func.vmap(lambda r: r @ x)(rows).sum() * x, True),
    "writes into its arguments": (_writes, True), "returns its argument": (lambda x, rows: x, True),
    "returns a constant": (lambda x, rows: torch.ones_like(x), True), "fills": (_fills, True),
    "writes into a constant": (_into_a_constant, False), "branches": (_branches, False),
    "counts": (_counts, False), "numpy": (_by_numpy, False), "raises": (_raises, False),
    "as many as there are": (_sorts, False), "another type": (lambda x, rows: x.half(), True),
    "no tensor": (lambda x, rows: 1.0, False),
    "always nan": (lambda x, rows: x * float("nan"), False),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_which_functions_run_for_many_agents_at_once(name):
    fn, runs = FUNCTIONS[name]
    like = [torch.zeros(5, 3), torch.zeros(5, 2, 3)]
    assert runs_batched(purified(fn, "postprocess"), like) is runs


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_one_call_an_agent(name, others, graph, on_a_device):
    fn = purified(FUNCTIONS[name][0], "postprocess")
    links = Links(graph, device=CPU, dtype=torch.float64)
    draw = torch.Generator().manual_seed(2)
    base = torch.randn(graph.agents, 3, generator=draw, dtype=torch.float64)
    for received in (Edges(base, links.broadcast_rows), Edges(base[links.broadcast_rows])):
        given = [Argument(Agents(base.clone())), Argument(received, others=others)]
        how = {"links": links, "operation": "postprocess", "width": 3}
        kept = KeptCalls()
        try:
            expected = called(kept, fn, given, **how).rows
        except InputError as error:
            with pytest.raises(type(error)):
                called(Calls(), fn, given, **how)
            continue
        assert len(kept.calls) == graph.agents
        before = base.clone()
        found = called(Calls(), fn, given, **how).rows
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
        assert torch.equal(base, before)  # a function writes into copies


def test_memory_for_a_few_agents_takes_a_few_at_a_time(on_a_device, monkeypatch):
    links, rows = Links(ring(7), device=CPU, dtype=torch.float64), torch.randn(7, 3).double()
    given = [Argument(Agents(rows)), Argument(Edges(rows, links.broadcast_rows))]
    fn = purified(lambda x, rows: x + rows.mean(0), "postprocess")
    how = {"links": links, "operation": "postprocess", "width": 3}
    expected, sizes, vmap = called(Calls(), fn, given, **how).rows, [], torch.func.vmap
    monkeypatch.setattr(function_calls, "elements_at_once", lambda device: 2 * (3 + 9 + 3))
    noted = lambda fn: lambda *rows: (sizes.append(len(rows[0])), vmap(fn)(*rows))[1]  # noqa: E731
    monkeypatch.setattr(torch.func, "vmap", noted)
    assert torch.equal(called(Calls(), fn, given, **how).rows, expected)
    assert sizes == [2, 2, 2, 1]


def test_a_vmap_that_mixes_agents_is_not_used(monkeypatch):
    vmap = torch.func.vmap
    monkeypatch.setattr(torch.func, "vmap", lambda fn: lambda *rows: vmap(fn)(*rows).flip(0))
    fn = purified(lambda x, rows: x + rows.mean(0), "postprocess")
    assert not runs_batched(fn, [torch.zeros(5, 3), torch.zeros(5, 2, 3)])


def test_a_function_is_tried_once_for_each_shape():
    fn, tried = purified(lambda x: 2 * x, "postprocess"), []
    counted = type(fn)(
        name=fn.name, fingerprint=fn.fingerprint, run=lambda x: (tried.append(1), fn.run(x))[1]
    )
    for count in (1, 4):
        runs_batched(counted, [torch.zeros(count, 3)])
    assert len(tried) == 2 * (3 + 1)  # of either sign three alone, and once together
    runs_batched(counted, [torch.zeros(4, 5)])
    assert len(tried) == 4 * (3 + 1)


def test_a_cpu_takes_agents_one_by_one():
    assert not function_calls._together(CPU, Calls())
    assert function_calls._together(torch.device("meta"), Calls())
    assert not function_calls._together(torch.device("meta"), KeptCalls())


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, of in ALGORITHMS.items() for form in of.forms]
)
def test_every_algorithm_is_the_same_either_way(name, form, on_a_device, monkeypatch):
    graph = erdos_renyi(6, 0.5, seed=1)
    models, taken = [], set()
    for recorded in (Recorded(), Recorded(functions=KeptCalls())):
        engine = Engine(
            setting(graph, min_max=ALGORITHMS[name].blocks == 2),
            bound_to(name, graph, form=form),
            randomness=SecretRandomness(5),
        )
        engine.advance()
        on_a_device.clear()
        engine.advance(recorded=recorded)
        models.append(engine.models())
        taken |= set(on_a_device)
    torch.testing.assert_close(models[0], models[1], rtol=1e-10, atol=1e-12)
    # A projection looks whether it gives the same twice.
    if ALGORITHMS[name].blocks == 2:
        assert {runs for _, runs in taken} == {False}
    if name == "dpdl":
        assert {runs for _, runs in taken} == {True}
