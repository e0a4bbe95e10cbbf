"""Train and attack every combination of the values that `--sweep` gives to keys of a run file.

Each combination is a run folder of its own, attacked as `overhear attack DIR` does. A sweep that
was interrupted goes on where it stopped: a combination that was attacked is read, and one that was
only trained is attacked. A combination that cannot be run keeps its reason and stops no other, and
neither does one where more was rebuilt than the proof allows: `contradictions` tells of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...privacy._validate import Progress
from ...privacy.errors import InputError
from ..audit.evidence_schema import Attack, AttackRow, Scenario
from ..cost import Expect
from ..described import Described
from ..errors import ContradictedProof, sentence
from ..folder import folder as run_folder
from ..folder.folder import check_sums
from ..folder.run import train_run
from ..plan.sweep import combinations_of
from ..run_file.run_file import ForeignFolder, RunFile, load_run_file
from ..run_file.tables import find_device
from ..stop import Stop, naming
from .attack import attack_as_asked, attack_run


class AttackedCombination(Described):
    """One combination of swept values, and its attack or why there is none."""

    swept: dict[str, str]
    """The text of the value of each swept key."""
    folder: str
    """Of its run, within that of the sweep."""
    refused: str | None
    """The reason why it cannot be run."""
    algorithm: str = ""
    """By its name; empty where the run file is refused."""
    scenarios: list[Scenario]
    """Of its attacks/attack.json."""


def attack_sweep(
    run: Path,
    out: Path,
    *,
    sweeps: Sequence[str] = (),
    overrides: Sequence[str] = (),
    device: str | None = None,
    progress: Progress | None = None,
    expect: Expect | None = None,
    stop: Stop | None = None,
) -> list[AttackedCombination]:
    """Train and attack every combination; the last sweep varies fastest.

    Args:
        out: folder that gets a run folder for each combination; may hold those of this sweep.
        sweeps: "table.key=a,b,c", one for each key.
        overrides: "table.key=value", the same in all combinations.
        device: where the attacks compute, as of `attack_run`; training goes by the run file.
        progress: called with (done, total, what) within each training and each attack.
        expect: called with what each attack will take, as of `attack_run`.
        stop: asked to stop, it ends; what is done of combinations is kept.

    Returns:
        An entry for each combination, refused or not.

    Raises:
        FileNotFoundError: no such run file.
        FileExistsError: a folder holds another run than that of the combination.
        ValueError: a sweep that cannot be read, or every combination is refused.
        Interrupted: it was asked to stop.
    """
    if device is not None:
        find_device(device)  # before anything is trained
    found, stop = [], stop or Stop()
    for number, (shown, every) in enumerate(combinations_of(run, sweeps, overrides=overrides)):
        folder = out / f"{number:02d}"
        stop.go_on()
        stop.note(f"{number} combinations are done; the same command goes on with the others")
        refused: str | None = None
        scenarios: list[Scenario] = []
        # A refused combination keeps its reason, and the others go on.
        algorithm = ""
        try:
            config = load_run_file(run, every)
            algorithm = config.algorithm.name
            attacked = _attacked(
                config, folder, device=device, progress=progress, expect=expect, stop=stop
            )
            scenarios = attacked.scenarios
        except InputError as error:
            refused = " ".join(sentence(error).removeprefix(f"{run}: ").split())
        found.append(
            AttackedCombination(
                swept=shown,
                folder=folder.name,
                refused=refused,
                algorithm=algorithm,
                scenarios=scenarios,
            )
        )
    if all(one.refused is not None for one in found):
        raise InputError(
            f"none of the {len(found)} combinations can be attacked; the first: {found[0].refused}"
        )
    return found


def _attacked(
    config: RunFile,
    folder: Path,
    *,
    device: str | None,
    progress: Progress | None,
    expect: Expect | None,
    stop: Stop,
) -> Attack:
    """The attack of one combination, from its folder as far as that goes."""
    # A folder of another run, of this attack, or of a run that was cut off.
    kept = folder / run_folder.RUN
    if kept.exists() and ForeignFolder(folder).run_file() != config:
        raise FileExistsError(
            f"{folder} holds a run of another run file; give a new folder to --out"
        )
    if kept.exists() and (attack := attack_as_asked(folder)) is not None:
        check_sums(folder)
        return attack
    if folder.exists() and not run_folder.is_finished(folder):
        raise FileExistsError(
            f"{folder} holds a run that did not finish, with a ledger of what it released; "
            f"`overhear train {kept} --out {folder} --resume` continues it, then repeat this "
            "command"
        )
    # A run that is not there is trained first.
    if not folder.exists():
        command = f"`overhear train {kept} --out {folder} --resume`, then this command again"
        with naming(command, run_file=kept):
            train_run(
                config,
                folder,
                progress=None
                if progress is None
                else lambda at, rounds, *_: progress(at, rounds, "" if at % 50 else "training"),
                stop=stop,
            )
        stop.go_on()
    try:
        return attack_run(folder, device=device, progress=progress, expect=expect, stop=stop)
    except ContradictedProof:  # told of when every combination is done
        if (attack := attack_as_asked(folder)) is None:
            raise
        return attack


def contradictions(found: Sequence[AttackedCombination]) -> list[str]:
    """A sentence for each attack that rebuilt more than the proof allows, fresh or kept.

    The argument is what `attack_sweep` returns.
    """
    told = []
    for attacked_combination in found:
        what = ", ".join(f"{key}={value}" for key, value in attacked_combination.swept.items())
        for scenario in attacked_combination.scenarios:
            if scenario.bound.exceeded:
                said = scenario.bound.sentence
                told.append(f"{what}: {said}" if what else said)
    return told


def attack_sweep_rows(
    found: Sequence[AttackedCombination], *, convention: str | None = None
) -> Iterator[dict[str, str]]:
    """Rows of a table of scores: head -> text.

    Args:
        found: as `attack_sweep` returns it.
        convention: by default there is one row for each scenario of each combination, with mean
            PSNRs. "dpdl" gives one row for each protection of each scenario, called as in that
            paper (ND-CG, ND-MM, DPDL-CG, DPDL-MM) where the algorithm is its own, with means and
            95 % intervals of MSE, PSNR and SSIM as that paper scales images.
    """
    for attacked_combination in found:
        for scenario in attacked_combination.scenarios:
            if convention is None:
                yield _means_row(attacked_combination, scenario)
            else:
                yield from _scaled_rows(attacked_combination, scenario, convention)
        if attacked_combination.refused is not None:
            yield {
                **attacked_combination.swept,
                "scenario": f"refused: {attacked_combination.refused}",
            }


def _means_row(one: AttackedCombination, scenario: Scenario) -> dict[str, str]:
    row = dict(one.swept)
    row |= {"round": str(scenario.round), "scenario": scenario.scenario, "attack": scenario.preset}
    for of in scenario.rows:
        row[of.name] = f"error {of.mean.mse:.3g}" if of.columns else f"{of.mean.psnr:.1f} dB"
    return row | {_ALLOWED: _allowed(scenario)}


_ALLOWED = "rebuilt, proof allows"
_SCENARIOS = {"cross-gradient": "CG", "momentum": "MM"}
_PROTECTIONS = {"no defence": "ND", "clipping only": "clipped", "defended": "DPDL"}


def _allowed(scenario: Scenario) -> str:
    bound = scenario.bound
    return f"{bound.rebuilt}/{bound.images}, {bound.most:.0%}"


def _scaled_rows(
    one: AttackedCombination, scenario: Scenario, convention: str
) -> Iterator[dict[str, str]]:
    for of in scenario.rows:
        name = f"{of.name}, {scenario.scenario}"
        if one.algorithm == "dpdl" and scenario.scenario in _SCENARIOS:
            protection = _PROTECTIONS.get(of.name, of.name)
            name = f"{protection}-{_SCENARIOS[scenario.scenario]}"
        if of.name == scenario.rows[0].name:
            if scenario is not one.scenarios[0]:
                continue  # the blind guess is the same for all
            name = of.name
        defended = of is scenario.rows[-1]
        yield {
            **one.swept,
            "round": str(scenario.round),
            "scenario": name,
            **_scores(of, convention),
            "labels": "" if of.right_labels is None else f"{of.right_labels}/{len(of.mse)}",
            _ALLOWED: _allowed(scenario) if defended else "",
        }


def _scores(row: AttackRow, convention: str) -> dict[str, str]:
    """MSE, PSNR and SSIM with their intervals; of a table its error."""
    if row.columns:
        return {"error": f"{row.mean.mse:.3g}"}
    told = row.conventions[convention]
    means = {"mse": told.mse, "psnr": told.psnr, "ssim": told.ssim}
    texts = {}
    for name, mean in means.items():
        digits = _DIGITS[name]
        known = told.interval.get(name)
        span = "" if known is None else f" ({known[0]:.{digits}f} to {known[1]:.{digits}f})"
        texts[name.upper()] = f"{mean:.{digits}f}{span}"
    return texts


_DIGITS = {"mse": 3, "psnr": 1, "ssim": 2}
