"""A table of routes: which handler answers which method and path.

A request without a handler is answered as by nsqd's router (httprouter), in the same order of checks: a redirect if the
path is right except for its slashes, dots or case; 404; the allowed methods for OPTIONS; 405 with the allowed methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from urllib.parse import quote

import attrs

from nsqkit.http.messages import Handler, Request, Response


class Router:
    """A table of routes.

    Args:
        routes: method, path and handler of each route. The last part of a path may be a colon and a name, which
            matches any text without a slash; the handler finds the text in ``request.params``.
    """

    def __init__(self, routes: Iterable[tuple[str, str, Handler]]) -> None:
        self._static: dict[str, dict[str, Handler]] = {}
        # By the path before the parameter: its name, and the handlers.
        self._named: dict[str, tuple[str, dict[str, Handler]]] = {}
        for method, path, handler in routes:
            prefix, colon, param = path.partition(":")
            if colon:
                self._named.setdefault(prefix, (param, {}))[1][method] = handler
            else:
                self._static.setdefault(path, {})[method] = handler
        self._lower = {path.rstrip("/").lower(): path for path in self._static}

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Answer a request by its handler, or with the reason why it has none."""
        handlers, params = self._find(request.path)
        handler = handlers.get(request.method)
        if handler is not None:
            return handler(attrs.evolve(request, params=params) if params else request)
        if location := self._corrected(request):
            query = f"?{request.raw_query}" if request.raw_query else ""
            return Response.moved(location + query, request.method)
        if not handlers:
            return Response.v1_error(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted({*handlers, "OPTIONS"})))
        if request.method == "OPTIONS":
            return Response(200, (allow,))
        return Response.v1_error(405, "METHOD_NOT_ALLOWED", allow)

    def _find(self, path: str) -> tuple[dict[str, Handler], dict[str, str]]:
        """Return the handlers of a path by method, and its parameters."""
        if path in self._static:
            return self._static[path], {}
        head, slash, value = path.rpartition("/")
        route = self._named.get(head + slash)
        if route is None or not value:
            return {}, {}
        param, handlers = route
        return handlers, {param: value}

    def _corrected(self, request: Request) -> str | None:
        """Return the path without errors in slashes, dots and case, if it has a handler for the method."""
        clean = _clean(request.path)
        path = self._lower.get(clean.lower())
        handlers = {} if path is None else self._static[path]
        if path is None:
            head, _, value = clean.rpartition("/")
            for prefix in self._named:
                if value and prefix.lower() == f"{head}/".lower():
                    path, handlers = prefix + quote(value), self._named[prefix][1]
        return path if path != request.path and request.method in handlers else None


def _clean(path: str) -> str:
    """Remove empty parts, ``.`` and ``..`` from a path, and the slash at its end."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "".join(f"/{part}" for part in parts)
