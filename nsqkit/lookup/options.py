"""Options of discovery, under go-nsq's names where it has one.

The rule it guards: as in ``nsqkit.client.options``, what cannot be used is refused when the object is made, by a
sentence that names the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon
from nsqkit.lookup.tls import lookupd_context
from nsqkit.options.fields import fraction, function, instance_with, seconds, secret, text

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.clock import Clock
    from nsqkit.http.daemon import HTTPRequest
    from nsqkit.lookup.selection import AddressMap, DiscoveryFilter

__all__ = ["LookupOptions"]

ANSWER_SIZE_MAX: Final = 5 * 1024 * 1024
"""Bytes of an nsqlookupd's answer; enough for some ten thousand nsqds."""


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
        lookupd_tls_context: for URLs of https, an ``ssl.SSLContext`` instead of the three options that follow.
        lookupd_tls_root_ca_file: file of certificates in PEM, one of which must have signed the nsqlookupd's; by
            default those that the system trusts.
        lookupd_tls_cert: file with the certificate, in PEM, by which this client shows who it is.
        lookupd_tls_key: file with its key.
        lookupd_http_request: sends the requests in the place of nsqkit's client: an async function of method, URL,
            headers and body that returns status and body.
        discovery_filter: a function that is given the nodes that were found, and returns those that are wanted.
        address_map: a mapping of ``broadcast_address:tcp_port`` to the address to connect to, or a function from one
            to the other; None instead of an address leaves that nsqd out.
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

    def daemon(self, address: str, clock: Clock | None = None) -> Daemon:
        """Return the nsqlookupd at an address of any form.

        Raises:
            OptionError: the address cannot be one, or a file cannot be used.
        """
        (daemon,) = self.daemons([address], clock).values()
        return daemon

    def daemons(self, addresses: object, clock: Clock | None = None) -> dict[str, Daemon]:
        """Return the nsqlookupds at addresses, by what makes two addresses the same.

        Raises:
            OptionError: one of them cannot be an address, or it is not a list of them; or a file cannot be used.
        """
        if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
            raise OptionError(
                f'lookupd_http_addresses is {addresses!r}; allowed is a list such as ["127.0.0.1:4161"]'
            )
        context = lookupd_context(self)
        daemons = [
            Daemon.of(
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
