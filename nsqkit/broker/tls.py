"""The broker's TLS settings, made from its options: for clients that upgrade and for HTTPS.

They accept the same clients as nsqd with the same options (nsqd/nsqd.go). A file that cannot be used is reported before
the broker listens.

OpenSSL offers TLS 1.0 and 1.1 only at its security level 0, which also accepts small keys and old signatures. With
nsqd's default of ``tls_min_version``, TLS 1.0, this level is used; from ``tls1.2`` on it is level 1. Clients with newer
versions are not affected: both sides choose the best common version.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.transport.pem import load_authorities, load_certificate
from nsqkit.transport.tls import TLS_VERSIONS, set_minimum_version

if TYPE_CHECKING:
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.transport.tls import Context

_MINIMUM_VERSIONS: Final = {"": ssl.TLSVersion.TLSv1, **TLS_VERSIONS}

# The ciphers of nsqd's Go without 3DES, in its order: forward secrecy first, then AES-128 first.
_CIPHERS: Final = (
    "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES128:ECDHE+AES256:RSA+AESGCM:RSA+AES"
    ":!aNULL:!eNULL:!PSK:!SRP"
)


def server_context(options: BrokerOptions) -> Context:
    """Return the TLS settings of a server, from options with a certificate.

    Raises:
        OptionError: a file cannot be used, or a package that the policy needs is not installed.
    """
    minimum_version = _MINIMUM_VERSIONS[options.tls_min_version]
    ciphers = f"{_CIPHERS}:@SECLEVEL={0 if minimum_version < ssl.TLSVersion.TLSv1_2 else 1}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(ciphers)
    set_minimum_version(context, minimum_version)
    load_certificate(context, options.tls_cert, options.tls_key, whose="option ")
    if options.tls_root_ca_file:
        load_authorities(context, options.tls_root_ca_file, whose="option ")
    else:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy == "require-verify":
        context.verify_mode = ssl.CERT_REQUIRED
        # Go trusts every certificate in the file, whether it is a CA or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    elif options.tls_client_auth_policy == "require":
        try:
            from nsqkit.transport.openssl import AnyCertificateContext
        except ImportError as error:
            raise OptionError(
                "option tls_client_auth_policy is 'require'; to take any certificate needs pyOpenSSL, which comes "
                "with the extra nsqkit[server]; without it, allowed is '' and 'require-verify'"
            ) from error
        files = options.tls_cert, options.tls_key
        return AnyCertificateContext(*files, minimum_version=minimum_version, ciphers=ciphers)
    return context
