"""Options of discovery, under go-nsq's names where it has one.

The rule it guards: as in ``nsqkit.client.options``, what cannot be used is refused when the object is made, by a
sentence that names the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.client.options import seconds
from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon, check_authorization, check_context

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.http.daemon import HTTPRequest
    from nsqkit.lookup.selection import AddressMap, DiscoveryFilter

__all__ = ["LookupOptions"]

ANSWER_SIZE_MAX: Final = 5 * 1024 * 1024
"""Bytes of an nsqlookupd's answer; enough for some ten thousand nsqds."""


def _fraction(default: float) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise OptionError(f"{attribute.name} is {value!r}; allowed is a number from 0 to 1")

    return attrs.field(default=default, validator=check)


def _check_function(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise OptionError(f"{attribute.name} is {value!r}; allowed is a function")


def _check_map(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not callable(value) and not isinstance(value, Mapping):
        raise OptionError(f"{attribute.name} is {value!r}; allowed is a mapping or a function")


def _check_authorization(instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    check_authorization(value, attribute.name)


def _check_context(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_context(value, attribute.name)


# Without slots, so that the options of a consumer can inherit from these and from those of a connection.
@attrs.frozen(kw_only=True, slots=False)
class LookupOptions:
    """How nsqlookupds are asked, and what is made of their answers. Durations are in seconds.

    Attributes:
        lookupd_poll_interval: between an answer and the next question, 0.01 to 300; 60 as in go-nsq.
        lookupd_poll_jitter: how much of the interval is added at most, at random and each time anew, 0 to 1; 0.3.
        lookupd_poll_timeout: after how long an nsqlookupd counts as failed, 0.1 to 300; 60 as in go-nsq. It holds up
            nobody: each nsqlookupd is asked on its own.
        lookupd_authorization: the Authorization header, as ``nsqkit.http.daemon.bearer`` makes it; empty for none.
            User and password of one nsqlookupd can stand in its URL instead.
        lookupd_tls_context: for URLs of https, with authority, client certificate and rules; by default the system's
            authorities are trusted.
        lookupd_http_request: sends the requests in the place of nsqkit's client: an async function of method, URL,
            headers and body that returns status and body.
        discovery_filter: a function that is given the nodes that were found, and returns those that are wanted.
        address_map: a mapping of ``broadcast_address:tcp_port`` to the address to connect to, or a function from one
            to the other; None instead of an address leaves that nsqd out.
    """

    lookupd_poll_interval: float = seconds(60.0, 0.01, 300.0)
    lookupd_poll_jitter: float = _fraction(0.3)
    lookupd_poll_timeout: float = seconds(60.0, 0.1, 300.0)
    lookupd_authorization: str = attrs.field(default="", repr=False, validator=_check_authorization)
    lookupd_tls_context: SSLContext | None = attrs.field(default=None, repr=False, validator=_check_context)
    lookupd_http_request: HTTPRequest | None = attrs.field(default=None, validator=_check_function)
    discovery_filter: DiscoveryFilter | None = attrs.field(default=None, validator=_check_function)
    address_map: AddressMap | None = attrs.field(default=None, validator=_check_map)

    def daemon(self, address: str) -> Daemon:
        """Return the nsqlookupd at an address of any form.

        Raises:
            OptionError: the address cannot be one.
        """
        return Daemon.of(
            address,
            tls_context=self.lookupd_tls_context,
            authorization=self.lookupd_authorization,
            connect_timeout=self.lookupd_poll_timeout,
            request_timeout=self.lookupd_poll_timeout,
            body_max=ANSWER_SIZE_MAX,
            http_request=self.lookupd_http_request,
        )

    def daemons(self, addresses: object) -> dict[str, Daemon]:
        """Return the nsqlookupds at addresses, by what makes two addresses the same.

        Raises:
            OptionError: one of them cannot be an address, or it is not a list of them.
        """
        if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
            raise OptionError(
                f'lookupd_http_addresses is {addresses!r}; allowed is a list such as ["127.0.0.1:4161"]'
            )
        return {daemon.key: daemon for daemon in map(self.daemon, addresses)}
