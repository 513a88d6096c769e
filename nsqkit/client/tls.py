"""TLS for the connections of one client, from its options.

A broker's certificate is verified unless ``tls_insecure_skip_verify`` is set. Files are read when the context is made,
so an unusable file is an error before anything is dialled.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from nsqkit.errors import NegotiationFailed
from nsqkit.transport.address import is_socket_path, split_address
from nsqkit.transport.pem import load_authorities, load_certificate
from nsqkit.transport.tls import TLS, TLS_VERSIONS, set_minimum_version

if TYPE_CHECKING:
    from nsqkit.client.options import ConnectionOptions
    from nsqkit.transport.tls import Context


def client_context(options: ConnectionOptions) -> Context | None:
    """Return the context of all connections, None without TLS; raise OptionError if a file cannot be used."""
    if not options.tls_v1 or options.tls_context is not None:
        return options.tls_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it verifies certificate and name
    context.options |= ssl.OP_NO_RENEGOTIATION  # as Go's client
    minimum_version = TLS_VERSIONS[options.tls_min_version]
    if minimum_version < ssl.TLSVersion.TLSv1_2:
        # OpenSSL allows the old versions only at its lowest security level.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    set_minimum_version(context, minimum_version)
    if options.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.tls_root_ca_file:
        load_authorities(context, options.tls_root_ca_file)
    else:
        context.load_default_certs()
    if options.tls_cert:
        load_certificate(context, options.tls_cert, options.tls_key)
    return context


def make_tls(context: Context, address: str, server_name: str) -> TLS:
    """Return the TLS layer of one connection; without ``server_name`` the certificate is for the host of the address.

    Raises:
        NegotiationFailed: no certificate can have that name.
    """
    host = "" if is_socket_path(address) else split_address(address)[0]
    name = server_name or host or "localhost"
    try:
        return TLS(context, server_hostname=name)
    except ValueError as error:
        raise NegotiationFailed(f"tls: no server can have the name {name!r}: {error}") from error
