"""The algorithms, each one a step in terms of the round's operations."""

from ..graphs.mixing import Sums
from . import dp_cga, dp_dpsgd, dp_netfleet, dpdl, dsgd, dyn_d2p, muffliato
from .algorithm import Algorithm, Form, bind
from .correlated import cdp_dsgd, decor, ldp_dsgd, whisper
from .min_max import dm_hsgd, dp_sgda, dpmixsgd, sgda

ALGORITHMS: dict[str, Algorithm] = {
    "dsgd": Algorithm(name="dsgd", init=dsgd.init, step=dsgd.step, private=False),
    "dp-dpsgd": Algorithm(
        name="dp-dpsgd", init=dp_dpsgd.init, step=dp_dpsgd.step, settings=dp_dpsgd.Settings
    ),
    "dpdl": Algorithm(name="dpdl", init=dpdl.init, step=dpdl.step, settings=dpdl.Settings),
    "dp-cga": Algorithm(
        name="dp-cga", init=dp_cga.init, step=dp_cga.step, settings=dp_cga.Settings
    ),
    "muffliato": Algorithm(
        name="muffliato",
        init=muffliato.init,
        step=muffliato.step,
        settings=muffliato.Settings,
        prepare=muffliato.prepare,
    ),
    "dp-netfleet": Algorithm(
        name="dp-netfleet",
        init=dp_netfleet.init,
        step=dp_netfleet.step,
        settings=dp_netfleet.Settings,
    ),
    "dyn-d2p": Algorithm(
        name="dyn-d2p",
        init=dyn_d2p.init,
        step=dyn_d2p.step,
        settings=dyn_d2p.Settings,
        prepare=dyn_d2p.prepare,
        weights=Sums.COLUMNS,
    ),
    "whisper": Algorithm(
        name="whisper",
        init=whisper.init,
        step=whisper.step,
        settings=whisper.Settings,
        prepare=whisper.prepare,
    ),
    "decor": Algorithm(
        name="decor",
        init=decor.init,
        step=decor.step,
        settings=decor.Settings,
        prepare=decor.prepare,
    ),
    "ldp-dsgd": Algorithm(
        name="ldp-dsgd",
        init=ldp_dsgd.init,
        step=ldp_dsgd.step,
        settings=ldp_dsgd.Settings,
        prepare=ldp_dsgd.prepare,
    ),
    "cdp-dsgd": Algorithm(
        name="cdp-dsgd",
        init=cdp_dsgd.init,
        step=cdp_dsgd.step,
        settings=cdp_dsgd.Settings,
        prepare=cdp_dsgd.prepare,
    ),
    "dpmixsgd": Algorithm(
        name="dpmixsgd",
        init=dpmixsgd.init,
        step=dpmixsgd.step,
        settings=dpmixsgd.Settings,
        blocks=2,
    ),
    "dm-hsgd": Algorithm(
        name="dm-hsgd",
        init=dm_hsgd.init,
        step=dm_hsgd.step,
        settings=dm_hsgd.Settings,
        private=False,
        blocks=2,
    ),
    "sgda": Algorithm(
        name="sgda",
        init=sgda.init,
        step=sgda.step,
        settings=sgda.Settings,
        private=False,
        blocks=2,
    ),
    "dp-sgda": Algorithm(
        name="dp-sgda",
        init=dp_sgda.init,
        step=dp_sgda.step,
        settings=dp_sgda.Settings,
        blocks=2,
    ),
}

__all__ = ["ALGORITHMS", "Algorithm", "Form", "bind"]
