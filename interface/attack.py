"""The public name `attack`: rebuild records from what was intercepted, or infer membership."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy.errors import InputTypeError
from ..training.own.objects import lend
from .run import Run
from .shown import AttackResult, GradientResult, attack_of_folder, gradient_result

if TYPE_CHECKING:
    from ..attacks.foreign.inference import MembershipResult
    from ..privacy._validate import Progress
    from ..runs.stop import Stop

__all__ = ["attack"]


def attack(
    target: Run | str | Path | Callable[..., Any], **options: Any
) -> AttackResult | GradientResult | MembershipResult:
    """Attack a run, intercepted gradients, or models of one's own training.

    Args:
        target: a `Run` or its folder, whose intercepted messages are attacked; a file of gradients,
            as `overhear invert` takes it; or a function ``train(dataset) -> model``,
            on which membership is inferred.
        options: of a run the keys of [attack], such as presets=["matched"] and images=8, device,
            and name, of a further attack; of gradients those of `overhear invert`, model and out
            at least, where model may be a network or a function, too; of a function data, method
            ("lira" or "rmia"), references and records.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked in this way already.
        ValueError: there is nothing that the attack can be mounted on.
        TypeError: something else, or an option that the target does not take.
    """
    if isinstance(target, Run):
        return attack_of_folder(target.folder, **options)
    if isinstance(target, str | Path):
        path = Path(target)
        if path.is_file():
            return _of_gradients(path, **options)
        return attack_of_folder(path, **options)
    if callable(target):
        from ..attacks.foreign.inference import membership

        return membership(target, **options)
    raise InputTypeError(
        f"target must be a Run, a folder, a file of gradients or a function that trains, not a "
        f"{type(target).__name__}"
    )


def _of_gradients(
    path: Path, *, progress: Progress | None = None, stop: Stop | None = None, **options: Any
) -> GradientResult:
    from ..runs.attack.invert import attack_gradients
    from ..runs.attack.request import GradientRequest
    from ..runs.requests import request_of

    model = options.get("model", "")
    if not isinstance(model, str):
        from torch.nn import Module

        if not isinstance(model, Module) and not callable(model):
            raise InputTypeError(
                f"model must be a network, a function (input_shape, classes) of yours, or the name "
                f'of one, such as "my_model:build", not a {type(model).__name__}'
            )
        builder = (lambda *_: deepcopy(model)) if isinstance(model, Module) else model
        called = getattr(model, "__name__", type(model).__name__)
        options["model"] = lend(builder, called=called, key="model")
    for name in ("out", "weights", "before", "prior", "truth", "vocabulary", "columns"):
        if isinstance(options.get(name), str):
            options[name] = Path(options[name])
    asked = request_of(GradientRequest, {"gradients": path, **options}, of="an attack on gradients")
    return gradient_result(attack_gradients(asked, progress=progress, stop=stop), asked.out)
