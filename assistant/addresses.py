"""Which addresses only this machine reaches, and at which one others reach it."""

from __future__ import annotations

import ipaddress
import socket

# Reserved for documentation (RFC 5737, RFC 3849): nobody is there, and nothing is sent to them.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` is reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of this machine.

    >>> is_wildcard("0.0.0.0"), is_wildcard("::"), is_wildcard("192.168.0.7")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def address_for_others(host: str) -> str | None:
    """Return the address at which other machines reach a server that listens on a wildcard.

    It is the one this machine would send from; `None` without a network.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unsent:
            unsent.connect((_ELSEWHERE[family], 9))  # chooses a route; datagrams need no partner
            address = str(unsent.getsockname()[0])
    except OSError:
        return None
    return None if is_loopback(address) or is_wildcard(address) else address
