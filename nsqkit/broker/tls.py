"""The broker's rules of TLS, made from its options: for clients that upgrade and for HTTPS alike.

The rule it guards: who may come in with nsqd's options may come in here, and nobody else (nsqd, nsqd/nsqd.go); and a
file that cannot be used is named, with the reason, before the broker listens.

What to know of ``tls_min_version``: OpenSSL speaks TLS 1.0 and 1.1 only at its security level 0. So that level is
taken where they are allowed, which by default they are, as in nsqd; it also takes small keys and old signatures, as
nsqd does. From ``tls1.2`` on the level is 1. Clients that can do better are not affected: both sides agree on the best.

How to read it: ``server_context`` is all that others need.
"""

from __future__ import annotations

import ssl
import warnings
from typing import TYPE_CHECKING, Final

from nsqkit.errors import OptionError
from nsqkit.transport.pem import load_authorities, load_certificate

if TYPE_CHECKING:
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.transport.tls import Context

_MINIMUM_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

# What nsqd's Go has, in its order, without 3DES: whose keys are new for each connection first, then AES-128 first.
_CIPHERS: Final = (
    "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES128:ECDHE+AES256:RSA+AESGCM:RSA+AES"
    ":!aNULL:!eNULL:!PSK:!SRP"
)


def server_context(options: BrokerOptions) -> Context:
    """Return the rules for those who connect, given options with a certificate.

    Raises:
        OptionError: a file cannot be used, or what the policy needs is not installed.
    """
    minimum_version = _MINIMUM_VERSIONS[options.tls_min_version]
    ciphers = f"{_CIPHERS}:@SECLEVEL={0 if minimum_version < ssl.TLSVersion.TLSv1_2 else 1}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(ciphers)
    with warnings.catch_warnings():
        # That an old version is old, who sets the option knows.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = minimum_version
    load_certificate(context, options.tls_cert, options.tls_key, whose="option ")
    if options.tls_root_ca_file:
        load_authorities(context, options.tls_root_ca_file, whose="option ")
    else:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy == "require-verify":
        context.verify_mode = ssl.CERT_REQUIRED
        # Go trusts what the file holds, be it a CA or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    elif options.tls_client_auth_policy == "require":
        return _any_certificate_context(options, minimum_version, ciphers)
    return context


def _any_certificate_context(
    options: BrokerOptions, minimum_version: ssl.TLSVersion, ciphers: str
) -> Context:
    try:
        from nsqkit.transport.openssl import AnyCertificateContext
    except ImportError as error:
        raise OptionError(
            "option tls_client_auth_policy is 'require'; to take any certificate needs pyOpenSSL, which comes "
            "with the extra nsqkit[server]; without it, allowed is '' and 'require-verify'"
        ) from error
    return AnyCertificateContext(
        options.tls_cert, options.tls_key, minimum_version=minimum_version, ciphers=ciphers
    )
