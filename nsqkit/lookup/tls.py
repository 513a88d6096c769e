"""The rules of TLS for asking nsqlookupds, made from the options.

The rule it guards: an nsqlookupd shows who it is, or is not asked. A file that cannot be used is named, with the
reason, before anything is asked.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from nsqkit.errors import OptionError
from nsqkit.transport.pem import load_authorities, load_certificate

if TYPE_CHECKING:
    from nsqkit.lookup.options import LookupOptions

__all__ = ["lookupd_context"]

_FILES = ("lookupd_tls_root_ca_file", "lookupd_tls_cert", "lookupd_tls_key")


def lookupd_context(options: LookupOptions) -> ssl.SSLContext | None:
    """Return the rules; None leaves them to whoever finds that a URL is one of https.

    Raises:
        OptionError: a file cannot be used, or options do not go together.
    """
    given = [name for name in _FILES if getattr(options, name)]
    if options.lookupd_tls_context is not None and given:
        raise OptionError(f"{given[0]} is set; allowed is to set it only without lookupd_tls_context")
    if bool(options.lookupd_tls_cert) != bool(options.lookupd_tls_key):
        raise OptionError(
            "lookupd_tls_cert and lookupd_tls_key go together: only one of them is set, "
            f"to {options.lookupd_tls_cert or options.lookupd_tls_key!r}"
        )
    if not given:
        return options.lookupd_tls_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies certificate and name
    if options.lookupd_tls_root_ca_file:
        load_authorities(context, options.lookupd_tls_root_ca_file, whose="lookupd_")
    else:
        context.load_default_certs()
    if options.lookupd_tls_cert:
        load_certificate(context, options.lookupd_tls_cert, options.lookupd_tls_key, whose="lookupd_")
    return context
