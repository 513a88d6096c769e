"""Loading of certificates and keys from files, for either end of a connection.

Each function loads the files of one or two options into an ``ssl.SSLContext``. The ``OptionError`` for an unusable file
names the option, the file and the reason. ``whose`` is the prefix of the option's name. An encrypted key is refused,
since OpenSSL would read its password from the terminal.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from nsqkit.errors import OptionError


def load_certificate(context: ssl.SSLContext, certificate: str, key: str, *, whose: str = "") -> None:
    """Load this end's certificate and key, from the files of ``tls_cert`` and ``tls_key``."""

    def refuse() -> NoReturn:
        raise OptionError(f"{whose}tls_key is {key!r}, which is encrypted; allowed is a key that is not")

    _check_readable(f"{whose}tls_cert", certificate)
    _check_readable(f"{whose}tls_key", key)
    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except ssl.SSLError as error:
        raise OptionError(
            f"{whose}tls_cert is {certificate!r} and tls_key is {key!r}; "
            f"allowed is a certificate and its own key, in PEM ({_reason(error)})"
        ) from error


def load_authorities(context: ssl.SSLContext, path: str, *, whose: str = "") -> None:
    """Load trusted certificates, from the file of ``tls_root_ca_file``."""
    _check_readable(f"{whose}tls_root_ca_file", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OptionError(
            f"{whose}tls_root_ca_file is {path!r}; allowed is a file of certificates, in PEM ({_reason(error)})"
        ) from error


def _check_readable(name: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{name} is {path!r}, which cannot be read: {reason}") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").replace("_", " ").lower()
