"""A client's rules of TLS, made from its options, for all connections of one client.

The rule it guards: a broker shows who it is, or nothing is said to it; only ``tls_insecure_skip_verify`` changes that.
A file that cannot be used is named, with the reason, before anything is dialled.

How to read it: ``client_context`` makes the rules, ``make_tls`` one connection's layer.
"""

from __future__ import annotations

import ssl
import warnings
from typing import TYPE_CHECKING, Final

from nsqkit.errors import NegotiationFailed
from nsqkit.transport.address import is_socket_path, split_address
from nsqkit.transport.pem import load_authorities, load_certificate
from nsqkit.transport.tls import TLS

if TYPE_CHECKING:
    from nsqkit.client.options import ConnectionOptions
    from nsqkit.transport.tls import Context

_VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def client_context(options: ConnectionOptions) -> Context | None:
    """Return the rules, None where TLS is not asked for.

    Raises:
        OptionError: a file cannot be used.
    """
    if not options.tls_v1 or options.tls_context is not None:
        return options.tls_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies certificate and name
    minimum_version = _VERSIONS[options.tls_min_version]
    if minimum_version < ssl.TLSVersion.TLSv1_2:
        # OpenSSL speaks the old versions only at its lowest level of security.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        # That an old version is old, who sets the option knows.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = minimum_version
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
    """Return the layer of one connection.

    Args:
        context: the rules.
        address: where the broker was dialled.
        server_name: whose certificate it must have; empty for the host in its address.

    Raises:
        NegotiationFailed: there is no certificate for such a name.
    """
    host = "" if is_socket_path(address) else split_address(address)[0]
    name = server_name or host or "localhost"
    try:
        return TLS(context, server_hostname=name)
    except ValueError as error:
        raise NegotiationFailed(f"tls: no server can have the name {name!r}: {error}") from error
