"""Which interface rows take: that of the route to the store, or to another host."""

import ipaddress
import sys

import pytest

from overhear.runs.folder import place as interface
from overhear.runs.folder.place import GLOO, NCCL, address_towards, choose_interface

HELD = {"127.0.0.1": "lo", "10.0.0.1": "eth0", "192.168.1.1": "wlan0", "fd00::1": "eth1"}


@pytest.fixture
def machine(monkeypatch):
    """A machine with four addresses, whose packets to 10.0.0.* leave by the second."""
    for name in (GLOO, NCCL):  # which are set, too: what was not there is taken away at the end
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    held = {ipaddress.ip_address(address): name for address, name in HELD.items()}
    for version in (4, 6):
        found = {address: name for address, name in held.items() if address.version == version}
        monkeypatch.setattr(interface, f"_addresses{version}", lambda found=found: found)
    monkeypatch.setattr(interface, "interface_names", lambda: list(HELD.values()))
    towards = {"10.0.0.2": "10.0.0.1"}
    monkeypatch.setattr(interface, "address_towards", towards.get)
    return monkeypatch


@pytest.mark.parametrize(
    ("own", "others", "chosen"),
    [
        ("192.168.1.1", ["10.0.0.2"], "wlan0"),
        ("fd00::1", ["fd00::2"], "eth1"),
        ("127.0.0.1", ["127.0.0.1"], "lo"),  # all on one machine
        ("127.0.1.1", ["127.0.0.1"], "lo"),  # as Debian names a machine
        ("127.0.1.1", ["127.0.0.1", None, "10.0.0.2"], "eth0"),  # where the store is
    ],
)
def test_rows_take_the_interface_of_the_route(machine, own, others, chosen):
    assert choose_interface(own, others, several=True) == chosen
    assert interface.os.environ[GLOO] == chosen
    assert interface.os.environ[NCCL] == f"={chosen}"


def test_nccl_on_one_machine_is_told_nothing(machine):
    assert choose_interface("127.0.0.1", ["127.0.0.1"], several=False) == "lo"
    assert NCCL not in interface.os.environ


@pytest.mark.parametrize("own", [None, "203.0.113.9"])
def test_without_a_route_or_an_interface_gloo_chooses(machine, own):
    assert choose_interface(own, [], several=True) is None
    assert GLOO not in interface.os.environ


def test_what_the_user_has_set_stays(machine):
    machine.setenv(GLOO, "wlan0,ib0")
    machine.setenv(NCCL, "eth")
    assert choose_interface("10.0.0.1", ["10.0.0.2"], several=True) == "wlan0,ib0"
    assert (interface.os.environ[GLOO], interface.os.environ[NCCL]) == ("wlan0,ib0", "eth")
    machine.delenv(GLOO)
    choose_interface("10.0.0.1", ["10.0.0.2"], several=True)
    assert interface.os.environ[NCCL] == "eth"


def test_an_interface_that_the_machine_has_not_is_refused_by_name(machine):
    machine.setenv(GLOO, "eth7")
    with pytest.raises(ValueError, match=r"GLOO_SOCKET_IFNAME='eth7'.*\(lo, eth0, wlan0, eth1\)"):
        choose_interface("10.0.0.1", [], several=True)


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are read on Linux")
def test_this_machine_has_a_loopback():
    assert interface._interface_of(address_towards("127.0.0.2")) == "lo"
    assert interface._addresses4()[ipaddress.IPv4Address("127.0.0.1")] == "lo"


@pytest.mark.parametrize("host", ["nowhere.invalid", "", "a" * 70, "\udcff"])
def test_a_host_without_an_address_has_no_route(host):
    assert address_towards(host) in (None, "127.0.0.1", "::1")  # no name at all is this machine
