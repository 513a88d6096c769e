from __future__ import annotations

import pytest

from nsqkit.http.messages import Request, Response
from nsqkit.http.router import Router


def answer(text):
    return lambda request: Response.plain(text + "".join(f" {k}={v}" for k, v in request.params.items()))


ROUTER = Router(
    [
        ("GET", "/ping", answer("ping")),
        ("POST", "/pub", answer("pub")),
        ("POST", "/topic/create", answer("create")),
        ("GET", "/config/:opt", answer("get")),
        ("PUT", "/config/:opt", answer("put")),
        ("GET", "/debug/pprof/", answer("index")),
    ]
)


def ask(method, target):
    response = ROUTER.handle(Request.of(method, target))
    assert isinstance(response, Response)
    return response


@pytest.mark.parametrize(
    ("method", "target", "text"),
    [
        ("GET", "/ping", b"ping"),
        ("GET", "/ping?a=b", b"ping"),
        ("GET", "/p%69ng", b"ping"),
        ("POST", "/topic/create", b"create"),
        ("GET", "/config/id", b"get opt=id"),
        ("PUT", "/config/log_level", b"put opt=log_level"),
        ("GET", "/config/a%20b", b"get opt=a b"),
        ("GET", "/debug/pprof/", b"index"),
    ],
)
def test_a_route_is_found(method, target, text):
    assert ask(method, target).body == text


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/nope"),
        ("POST", "/put?topic=t"),
        ("GET", "/config"),
        ("GET", "/config/"),
        ("GET", "/config/a/b"),
        ("DELETE", "/nope"),
        ("OPTIONS", "/nope"),
        ("OPTIONS", "*"),
    ],
)
def test_an_unknown_path_is_not_found(method, target):
    assert ask(method, target) == Response.v1_error(404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/pub", "OPTIONS, POST"),
        ("HEAD", "/ping", "GET, OPTIONS"),
        ("POST", "/config/id", "GET, OPTIONS, PUT"),
        ("DELETE", "/ping/", None),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(method, target, allow):
    if allow is None:
        assert ask(method, target).status == 404
    else:
        assert ask(method, target) == Response.v1_error(405, "METHOD_NOT_ALLOWED", ("Allow", allow))


def test_options_lists_the_methods():
    assert ask("OPTIONS", "/config/id") == Response(200, (("Allow", "GET, OPTIONS, PUT"),))


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "//ping", 301, "/ping"),
        ("GET", "/PING?a=%20", 301, "/ping?a=%20"),
        ("POST", "/pub/?topic=t", 307, "/pub?topic=t"),
        ("POST", "/x/../topic/./create", 307, "/topic/create"),
        ("GET", "/debug/pprof", 301, "/debug/pprof/"),
        ("GET", "/config/log_level/", 301, "/config/log_level"),
        ("PUT", "/CONFIG/log_level", 307, "/config/log_level"),
        ("GET", "//config/a%0d%0ab", 301, "/config/a%0D%0Ab"),
    ],
)
def test_an_almost_correct_path_is_redirected(method, target, status, location):
    there = ("Location", location)
    link = f'<a href="{location}">Moved Permanently</a>.\n\n'.encode()
    of_a_get = Response(status, (("Content-Type", "text/html; charset=utf-8"), there), link)
    assert ask(method, target) == (of_a_get if method == "GET" else Response(status, (there,)))


def test_the_link_of_a_redirect_is_escaped_as_in_go():
    assert ask("GET", "//ping?a=1&b='<\">") == Response(
        301,
        (("Content-Type", "text/html; charset=utf-8"), ("Location", "/ping?a=1&b='<\">")),
        b'<a href="/ping?a=1&amp;b=&#39;&lt;&#34;&gt;">Moved Permanently</a>.\n\n',
    )


def test_an_async_handler_is_returned():
    async def handler(request: Request) -> Response:
        return Response.plain(request.path)

    answer = Router([("GET", "/a", handler)]).handle(Request.of("GET", "/a"))
    assert not isinstance(answer, Response)
    with pytest.raises(StopIteration) as info:
        answer.send(None)  # type: ignore[attr-defined]
    assert info.value.value == Response.plain("/a")
