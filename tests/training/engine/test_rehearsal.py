"""Before a run code of the user is called in every layout: it is refused in a sentence, or runs."""

import functools
import logging
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overhear.privacy.errors import InputError
from overhear.training import Examples, Setting, build_graph
from overhear.training.engine.engine import check_user_code
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.losses import NetworkLoss, check_loss
from overhear.training.models.tasks import AreaUnderCurve


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


class Checkpointed(Net):
    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False).tanh())


class CheckpointedAgain(Net):
    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True).tanh())


class OnHost(Net):
    def forward(self, x):
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


class WithoutRule(Net):
    def forward(self, x):
        return super().forward(_Doubled.apply(x))


class _Centred(torch.autograd.Function):
    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope

    @staticmethod
    def vmap(info, dims, x):
        return x - x.mean(dims[0], keepdim=True), dims[0]


class MeetingUnderVmap(Net):
    def forward(self, x):
        return super().forward(_Centred.apply(x))


class Branching(Net):
    def forward(self, x):
        return super().forward(x if x.sum().item() > 0 else -x)


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.body.register_full_backward_hook(self._raise)

    def _raise(self, *_):
        raise ValueError("a hook")


class OnTheTape(Net):
    def forward(self, x):
        out = self.body(x)
        if out.requires_grad:
            out.register_hook(self._raise)
        return self.head(out)

    def _raise(self, slope):
        raise KeyError("a tape")


class Exits(Net):
    def forward(self, x):
        if torch.is_grad_enabled():
            sys.exit(7)
        return super().forward(x)


class Recurses(Net):
    def forward(self, x):
        return self.forward(x) if torch.is_grad_enabled() else super().forward(x)


class ReturnsMore(Net):
    def forward(self, x):
        out = super().forward(x)
        return {"logits": out} if torch.is_grad_enabled() else out


class Evaluated(Net):
    def forward(self, x):
        if not torch.is_grad_enabled():
            raise RuntimeError("no evaluation")
        return super().forward(x)


class CannotSayItself(Net):
    class Odd(Exception):
        def __str__(self):
            return self.detail

    def forward(self, x):
        raise self.Odd


class OfFew(Net):
    def forward(self, x):
        if len(x) > 2:
            raise ValueError("too many")
        return super().forward(x)


class Interrupted(Net):
    def forward(self, x):
        raise KeyboardInterrupt


def _setting(model, layout):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 4, generator=draw), torch.tensor([0, 1, 1, 0])
    shards = [Examples(x, y), Examples(x, y)]
    return Setting(
        graph=build_graph("ring", 2),
        model=model,
        shards=shards,
        sampling_rate=1.0,
        device=torch.device("cpu"),
        layout=layout,
    ), Examples(x, y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["auto", "loop"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Checkpointed, "CheckpointError|checkpoint|saved"),
        (CheckpointedAgain, "autograd.Function"),
        (OnHost, "RuntimeError"),
        (WithoutRule, "functorch transforms"),
        (MeetingUnderVmap, "other gradients for two records together"),
        (Hooked, "ValueError: a hook|RuntimeError"),
        (OnTheTape, "KeyError: 'a tape'|RuntimeError"),
        (Exits, "SystemExit: 7"),
        (Recurses, "RecursionError"),
        (ReturnsMore, "TypeError|AttributeError"),
        (Evaluated, "no evaluation, where it is evaluated"),
        (OfFew, "too many, where it is evaluated"),
        (CannotSayItself, "raised Odd, "),
    ],
)
def test_what_a_network_raises_is_told_before_a_run(kind, words, layout):
    with pytest.raises(InputError, match=words):
        check_user_code(*_setting(kind(), layout))


class PicksByAMask(Net):
    def forward(self, x):
        return super().forward(x) + x[x > 0].sum()


class WritesIntoAConstant(Net):
    def forward(self, x):
        held = torch.zeros(len(x), 4)
        held[:] = self.body(x)
        return self.head(held)


class AsksNumpy(Net):
    def forward(self, x):
        return super().forward(x * float(np.abs(np.fft.fft(x.detach().numpy())).max()))


class DrawsBySeed(Net):
    def forward(self, x):
        return super().forward(x * torch.rand(4, generator=torch.Generator().manual_seed(1)))


class HoldsAGenerator(Net):
    def __init__(self):
        super().__init__()
        self.draws = torch.Generator()

    def forward(self, x):
        return super().forward(x * torch.rand(4, generator=self.draws.manual_seed(1)))


@pytest.mark.parametrize(
    "kind", [Branching, PicksByAMask, WritesIntoAConstant, AsksNumpy, DrawsBySeed, HoldsAGenerator]
)
def test_what_vmap_alone_cannot_do_is_taken_by_the_loop(kind):
    check_user_code(*_setting(kind(), "loop"))
    with pytest.raises(InputError):
        check_user_code(*_setting(kind(), "auto"))


def brier(outputs, targets):
    kind = nn.functional.one_hot(targets, outputs.shape[-1])  # it has no rule for vmap
    return (outputs.softmax(-1) - kind).square().sum(-1)


def test_a_loss_that_vmap_alone_cannot_take_is_taken_by_the_loop():
    check_loss(brier, "mine:brier", classes=2, outputs=0)
    for layout in ("loop", "auto"):
        setting, test = _setting(Net(), layout)
        task = NetworkLoss(setting.model, brier, regression=False)
        setting = replace(setting, task=task)
        if layout == "loop":
            check_user_code(setting, test)
        else:
            with pytest.raises(InputError, match='layout = "loop" takes it as it is'):
                check_user_code(setting, test)


class ExhaustsAnIterator(Net):
    def forward(self, x):
        return super().forward(x * next(iter([])))


@pytest.mark.parametrize("layout", ["auto", "loop"])
def test_an_iterator_that_ends_is_told_like_any_other_error(layout):
    with pytest.raises(InputError, match="StopIteration"):
        check_user_code(*_setting(ExhaustsAnIterator(), layout))


class HoldsALock(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class HoldsAComputedWeight(Net):
    def __init__(self):
        super().__init__()
        self.half = self.body.weight / 2


@pytest.mark.parametrize(
    "make", [HoldsALock, HoldsAComputedWeight, lambda: torch.jit.script(Net())]
)
@pytest.mark.filterwarnings("ignore")
def test_a_network_that_cannot_be_copied_is_told_so(make):
    for use in (AreaUnderCurve, PairGradients):
        with pytest.raises(InputError, match=r"the network cannot be copied .*; keep"):
            use(make())


LIMIT, SIZES = [9.0], dict[int, float]()


class KeepsWhereItIsEvaluated(Net):
    """What no made record in [0, 1] meets."""

    def forward(self, x):
        if not torch.is_grad_enabled():
            LIMIT[0] = 5.0 + float(x.abs().max())
        return super().forward(x.clamp(max=LIMIT[0]))


class FillsByTheBatch(Net):
    def forward(self, x):
        if not torch.is_grad_enabled():
            SIZES.setdefault(len(x), 1.0)
        return super().forward(x)


def test_what_is_kept_where_a_network_is_evaluated_is_refused():
    with pytest.raises(InputError, match=r"changes 'forward.LIMIT'"):
        check_user_code(*_setting(KeepsWhereItIsEvaluated(), "loop"))
    check_user_code(*_setting(FillsByTheBatch(), "loop"))


def test_an_interruption_is_none_of_the_network_s():
    with pytest.raises(KeyboardInterrupt):
        check_user_code(*_setting(Interrupted(), "loop"))


MASKS, LOG = {}, logging.getLogger("mine")


@functools.lru_cache(maxsize=8)
def _mask(width):
    return torch.ones(width, width).tril()


class Masked(Net):
    def forward(self, x):
        width = x.shape[-1]
        if width not in MASKS:
            MASKS[width] = torch.ones(width)
        LOG.debug("called on %s", tuple(x.shape))
        return super().forward(x * MASKS[width] @ _mask(width))


class MaskedByItself(Net):
    @functools.lru_cache(maxsize=8)  # noqa: B019 - as users write it
    def mask(self, width):
        return torch.ones(width)

    def forward(self, x):
        return super().forward(x * self.mask(x.shape[-1]))


class Lazy(Net):
    position = None

    def forward(self, x):
        if Lazy.position is None:
            Lazy.position = torch.arange(4.0) / 4
        return super().forward(x + Lazy.position)


class WithConstants(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("position", torch.arange(4.0))
        self.teacher = [nn.Linear(4, 4).requires_grad_(False)]

    def forward(self, x):
        return super().forward(x + self.position) + self.teacher[0](x)[..., :2]


class Attends(Net):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        seen = x[:, None].expand(-1, 3, -1)
        return super().forward(self.attention(seen, seen, seen, need_weights=False)[0].mean(1))


class ReadsAFile(Net):
    def forward(self, x):
        return super().forward(x * torch.from_numpy(np.load("scale.npy")))


@pytest.mark.parametrize(
    "kind", [Net, Masked, Lazy, MaskedByItself, WithConstants, Attends, ReadsAFile]
)
def test_sound_networks_are_rehearsed(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("scale.npy", np.ones(4, dtype=np.float32))
    check_user_code(*_setting(kind(), "auto"))  # which tries the loop, vmap and a layout by layer
