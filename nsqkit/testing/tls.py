"""A broker with TLS for tests, and the files that its clients need.

Authority and certificates are made by the package trustme, once in a run of pytest. No key is used twice.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.testing.servers import NsqdServer

if TYPE_CHECKING:
    from datetime import datetime

    import trustme

NAMES: Final = ("127.0.0.1", "::1", "localhost")
"""The addresses and names in the certificate of the broker."""

CLIENT_NAME: Final = "client.test"
"""The common name in the certificate of the client."""


@attrs.frozen
class Certificates:
    """Paths of files in PEM.

    Attributes:
        ca_file: the certificate of the authority, which has signed the others.
        server_certificate: the certificate of the broker, for ``NAMES``.
        server_key: its key.
        client_certificate: the certificate of a client, with the common name ``CLIENT_NAME``.
        client_key: its key.
    """

    ca_file: str
    server_certificate: str
    server_key: str
    client_certificate: str
    client_key: str

    @classmethod
    def make(cls, directory: Path, *, not_after: datetime | None = None) -> Certificates:
        """Make an authority and both certificates, and write them to a directory.

        Args:
            directory: where the files are written.
            not_after: the time at which the certificate of the broker expires; None for the year 3000.

        Raises:
            OptionError: the package trustme is not installed.
        """
        try:
            import trustme
        except ImportError as error:
            raise OptionError(
                "certificates for tests need the package trustme, which is not installed: pip install 'nsqkit[testing]'"
            ) from error
        authority = trustme.CA()
        ca_file = directory / "ca.pem"
        authority.cert_pem.write_to_path(ca_file)
        server = _write(directory, "server", authority.issue_cert(*NAMES, not_after=not_after))
        client = _write(directory, "client", authority.issue_cert(CLIENT_NAME, common_name=CLIENT_NAME))
        return cls(str(ca_file), *server, *client)

    def client_context(self, *, certificate: bool) -> ssl.SSLContext:
        """Return the settings of a client that trusts the authority, with or without a certificate of its own."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if certificate:
            context.load_cert_chain(self.client_certificate, self.client_key)
        return context


def _write(directory: Path, name: str, certificate: trustme.LeafCert) -> tuple[str, str]:
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    paths[0].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(paths[1])
    return str(paths[0]), str(paths[1])


class TLSNsqdServer(NsqdServer):
    """An nsqd that refuses clients without TLS; HTTP remains without TLS, beside ``https_address``.

    Args:
        certificates: its files and those of clients.
        mutual: refuse clients without a certificate of the authority, too.
        options: as for ``NsqdServer``.

    Attributes:
        ca_file: path of the certificate that clients have to trust.
        client_certificate: path of a certificate for clients.
        client_key: path of its key.
        ssl_context: the settings of a client; if ``mutual``, with the certificate.
    """

    def __init__(self, certificates: Certificates, *, mutual: bool = False, **options: Any) -> None:
        verify = {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": certificates.ca_file}
        super().__init__(
            **{
                "tls_cert": certificates.server_certificate,
                "tls_key": certificates.server_key,
                "tls_required": "tcp-https",
                **(verify if mutual else {}),
                **options,
            }
        )
        self.ca_file = certificates.ca_file
        self.client_certificate = certificates.client_certificate
        self.client_key = certificates.client_key
        self.ssl_context = certificates.client_context(certificate=mutual)
