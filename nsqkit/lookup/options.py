"""Options of discovery, under go-nsq's names where go-nsq has the option.

As in ``nsqkit.client.options``, an invalid value is refused when the object is made, with the option's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon
from nsqkit.lookup.selection import AddressMap, DiscoveryFilter, select
from nsqkit.lookup.tls import lookupd_context
from nsqkit.options.fields import fraction, function, instance_with, seconds, secret, text
from nsqkit.transport.address import shown_value

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.clock import Clock
    from nsqkit.http.daemon import HTTPRequest
    from nsqkit.wire.lookup import Node

ANSWER_SIZE_MAX: Final = 5 * 1024 * 1024
"""Limit of a response's size in bytes; enough for some ten thousand nsqds."""


# Without slots, so that the options of a consumer can inherit from these and from those of a connection.
@attrs.frozen(kw_only=True, slots=False)
class LookupOptions:
    """How requests are sent to nsqlookupds, and how their responses are used. Durations are in seconds.

    Attributes:
        lookupd_poll_interval: time between a response and the next request, 0.01 to 300; 60 as in go-nsq.
        lookupd_poll_jitter: the part of the interval, 0 to 1, up to which a random time is added to each wait; 0.3.
        lookupd_poll_timeout: time limit of a request, 0.1 to 300; 60 as in go-nsq. It delays no other nsqlookupd.
        lookupd_authorization: the Authorization header, as ``nsqkit.http.daemon.bearer`` makes it; empty for none.
            The URL of an nsqlookupd may contain user and password instead.
        lookupd_tls_context: for https, an ``ssl.SSLContext`` instead of the next three options.
        lookupd_tls_root_ca_file: a file of certificates in PEM; one of them must have signed the nsqlookupd's. By
            default those that the system trusts.
        lookupd_tls_cert: a file with this client's certificate, in PEM.
        lookupd_tls_key: a file with its key.
        lookupd_http_request: sends the requests instead of nsqkit's client: an async function of method, URL, headers
            and body that returns status and body.
        discovery_filter: a function that takes the nodes that were found, and returns those to connect to.
        address_map: a mapping of ``broadcast_address:tcp_port`` to the address to connect to, or a function from one
            to the other; None instead of an address excludes that nsqd.
    """

    lookupd_poll_interval: float = seconds(60.0, 0.01, 300.0)
    lookupd_poll_jitter: float = fraction(0.3)
    lookupd_poll_timeout: float = seconds(60.0, 0.1, 300.0)
    lookupd_authorization: str = secret()
    lookupd_tls_context: SSLContext | None = instance_with("wrap_bio", "ssl.create_default_context()")
    lookupd_tls_root_ca_file: str = text("")
    lookupd_tls_cert: str = text("")
    lookupd_tls_key: str = text("")
    lookupd_http_request: HTTPRequest | None = function()
    discovery_filter: DiscoveryFilter | None = function()
    address_map: AddressMap | None = function(or_mapping=True)

    def select(self, nodes: Iterable[Node]) -> list[str]:
        """Return the addresses to connect to, each once; see ``nsqkit.lookup.selection``."""
        return select(nodes, discovery_filter=self.discovery_filter, address_map=self.address_map)

    def daemon(self, address: str, clock: Clock | None = None) -> Daemon:
        """Return the nsqlookupd at an address in any form that ``Daemon`` accepts; errors as ``daemons``."""
        (daemon,) = self.daemons([address], clock).values()
        return daemon

    def daemons(self, addresses: object, clock: Clock | None = None) -> dict[str, Daemon]:
        """Return the nsqlookupds at several addresses, each once, by their ``key``.

        Raises:
            OptionError: an address is invalid, ``addresses`` is no list, or a file cannot be used.
        """
        if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
            shown = shown_value(addresses)
            raise OptionError(f'lookupd_http_addresses is {shown}; allowed is a list such as ["127.0.0.1:4161"]')
        context = lookupd_context(
            self.lookupd_tls_context,
            root_ca_file=self.lookupd_tls_root_ca_file,
            cert=self.lookupd_tls_cert,
            key=self.lookupd_tls_key,
        )
        daemons = [
            Daemon(
                address,
                tls_context=context,
                authorization=self.lookupd_authorization,
                connect_timeout=self.lookupd_poll_timeout,
                request_timeout=self.lookupd_poll_timeout,
                body_max=ANSWER_SIZE_MAX,
                http_request=self.lookupd_http_request,
                clock=clock,
            )
            for address in addresses
        ]
        return {daemon.key: daemon for daemon in daemons}
