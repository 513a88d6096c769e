"""Certificates and an auth server for a broker with TLS and AUTH.

No key is in the repository, and no secret is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

import attrs

SECRET = "open sesame"

Asked: TypeAlias = "list[dict[str, list[str]]]"


@attrs.frozen
class Certificates:
    """Files in PEM: of an authority, and the certificates that it has signed for a broker and for a client."""

    ca: str
    server: str
    client: str


def write_certificates(folder: Path) -> Certificates:
    """Write such files."""
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    client = authority.issue_cert("client")
    paths = [str(folder / name) for name in ("ca.pem", "server.pem", "client.pem")]
    authority.cert_pem.write_to_path(paths[0])
    server.private_key_and_cert_chain_pem.write_to_path(paths[1])
    client.private_key_and_cert_chain_pem.write_to_path(paths[2])
    return Certificates(*paths)


@attrs.frozen
class AuthServer:
    """Grants SECRET all permissions for each topic; records the requests."""

    address: str
    asked: Asked


@contextmanager
def run_auth_server() -> Iterator[AuthServer]:
    """Run an auth server in a thread."""
    asked: Asked = []
    grant = {
        "ttl": 60,
        "identity": "ali",
        "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}],
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            known = asked[-1].get("secret") == [SECRET]
            self.send_response(200 if known else 403)
            self.end_headers()
            self.wfile.write(json.dumps(grant).encode() if known else b"{}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield AuthServer(f"127.0.0.1:{server.server_port}", asked)
        finally:
            server.shutdown()
            thread.join()
