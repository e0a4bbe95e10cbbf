from dataclasses import replace

import pytest

from overhear.attacks.problem.objective import PRESETS


def test_the_published_attacks_are_pure_optimisation():
    published = [PRESETS[name] for name in ("dlg", "idlg", "inverting-gradients")]
    assert not any(preset.exact or preset.follow_noise for preset in published)


def test_the_published_attacks_leave_the_network_as_it_is():
    published = [PRESETS[name] for name in ("dlg", "idlg", "inverting-gradients")]
    assert not any(preset.softness or preset.colour for preset in published)


def test_dlg_and_idlg_differ_in_the_labels_alone():
    assert replace(PRESETS["dlg"], joint_labels=False) == PRESETS["idlg"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adam_steps": 0, "newton_steps": 0}, "nor both 0"),
        ({"starts": 0}, "starts=0"),
        ({"tv_weight": -1.0}, "tv_weight=-1.0"),
        ({"fade": 0.0}, "fade=0.0"),
        ({"softness": -1.0}, "softness=-1.0"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(PRESETS["matched"], **changes)  # type: ignore[arg-type] # a table of bad values
