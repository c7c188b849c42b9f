"""Which hosts are this machine's alone, and what others call it."""

from __future__ import annotations

import ipaddress

import pytest

from assistant.addresses import address_for_others, is_loopback, is_wildcard


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_is_reached_from_this_machine_only(host: str) -> None:
    assert is_loopback(host)
    assert not is_wildcard(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_is_every_address_and_so_no_loopback(host: str) -> None:
    assert is_wildcard(host)
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["192.168.0.7", "assistant.example"])
def test_an_address_or_a_name_of_its_own_is_neither(host: str) -> None:
    assert not is_loopback(host)
    assert not is_wildcard(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_what_others_are_told_is_an_address_they_can_reach(host: str) -> None:
    address = address_for_others(host)
    if address is not None:  # as it is on a machine without a network
        assert not is_loopback(address)
        assert ipaddress.ip_address(address).version == ipaddress.ip_address(host).version
