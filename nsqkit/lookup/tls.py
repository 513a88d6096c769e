"""The TLS context for requests to nsqlookupds.

It verifies the certificate and the name of each nsqlookupd. Files are read when the context is made, so an unusable
file is an error before any request.
"""

from __future__ import annotations

import ssl

from nsqkit.errors import OptionError
from nsqkit.transport.pem import load_authorities, load_certificate


def lookupd_context(context: ssl.SSLContext | None, *, root_ca_file: str, cert: str, key: str) -> ssl.SSLContext | None:
    """Return the context for the options of the same names with ``lookupd_tls_``; None stands for the default.

    Raises:
        OptionError: a file cannot be used, or the options exclude each other.
    """
    files = {"root_ca_file": root_ca_file, "cert": cert, "key": key}
    given = [name for name, path in files.items() if path]
    if context is not None and given:
        raise OptionError(f"lookupd_tls_{given[0]} is set; allowed is to set it only without lookupd_tls_context")
    if bool(cert) != bool(key):
        raise OptionError(
            f"lookupd_tls_cert and lookupd_tls_key go together: only one of them is set, to {cert or key!r}"
        )
    if not given:
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it verifies certificate and name
    if root_ca_file:
        load_authorities(context, root_ca_file, whose="lookupd_")
    else:
        context.load_default_certs()
    if cert:
        load_certificate(context, cert, key, whose="lookupd_")
    return context
