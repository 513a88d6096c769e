from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections import Counter

import anyio
import pytest

from nsqkit.clock import ManualClock
from nsqkit.http import debug
from nsqkit.http.debug import MEMORY_ROUTES, pprof_routes
from nsqkit.http.messages import HTTPError, Request, Response
from nsqkit.http.router import Router

pytestmark = pytest.mark.anyio

CLOCK = ManualClock()
ROUTER = Router([*pprof_routes("/debug/pprof/", CLOCK), *MEMORY_ROUTES])

TEXT = ("Content-Type", "text/plain; charset=utf-8")
NO_SNIFF = ("X-Content-Type-Options", "nosniff")


async def ask(target: str, method: str = "GET") -> Response:
    answer = ROUTER.handle(Request.of(method, target))
    return answer if isinstance(answer, Response) else await answer


async def text(target: str) -> str:
    response = await ask(target)
    assert response.status == 200
    assert TEXT in response.headers
    assert NO_SNIFF in response.headers
    return response.body.decode()


async def attachment(target: str, name: str) -> str:
    response = await ask(target)
    assert response.status == 200
    assert ("Content-Type", "application/octet-stream") in response.headers
    assert ("Content-Disposition", f'attachment; filename="{name}"') in response.headers
    return response.body.decode()


async def delta(target: str, seconds: float) -> Response:
    """Return the answer to a request that waits for ``seconds``."""
    answers: list[Response] = []

    async def request() -> None:
        answers.append(await ask(target))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request)
        await anyio.wait_all_tasks_blocked()
        CLOCK.advance(seconds - 1)
        await anyio.wait_all_tasks_blocked()
        assert not answers
        CLOCK.advance(1)
    return answers[0]


async def test_the_index_lists_all_profiles(monkeypatch):
    monkeypatch.setattr(debug, "_sample", lambda seconds, stop: Counter())
    response = await ask("/debug/pprof/")
    assert ("Content-Type", "text/html; charset=utf-8") in response.headers
    page = response.body.decode()
    for name in ("block", "cmdline", "goroutine", "heap", "profile", "threadcreate"):
        assert f"<a href='{name}?debug=1'>{name}</a>" in page
        assert name in debug.PROFILES or (await ask(f"/debug/pprof/{name}?seconds=1")).status == 200


async def test_nsqlookupds_index_has_no_trailing_slash():
    router = Router(pprof_routes("/debug/pprof", CLOCK))
    for path, status in (("/debug/pprof", 200), ("/debug/pprof/", 301)):
        answer = router.handle(Request.of("GET", path))
        assert isinstance(answer, Response)
        assert answer.status == status


async def test_the_command_line_is_separated_by_nul(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "nsqkit", "a b"])
    assert await text("/debug/pprof/cmdline") == "python\0-m\0nsqkit\0a b"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_symbol_is_answered(method):
    assert (await ask("/debug/pprof/symbol?0x4000", method)).body == b"num_symbols: 1\n"


class TestProfiles:
    @pytest.mark.parametrize("name", ["block", "goroutine", "heap", "threadcreate"])
    async def test_each_profile_is_a_file_or_a_text(self, name):
        head = f"{name} profile: total "
        assert (await attachment(f"/debug/pprof/{name}", name)).startswith(head)
        assert (await attachment(f"/debug/pprof/{name}?debug=x", name)).startswith(head)
        assert (await text(f"/debug/pprof/{name}?debug=1")).startswith(head)

    async def test_the_block_profile_is_empty(self):
        assert await text("/debug/pprof/block?debug=1") == "block profile: total 0\n"

    async def test_tasks_and_threads_show_where_they_are(self):
        started, finish = threading.Event(), threading.Event()

        def wait_in_a_thread() -> None:
            started.set()
            finish.wait()

        async def wait_in_a_task() -> None:
            await anyio.sleep_forever()

        thread = threading.Thread(target=wait_in_a_thread, name="the-thread")
        thread.start()
        started.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_in_a_task, name="the-task")
            tasks.start_soon(wait_in_a_task)
            await anyio.wait_all_tasks_blocked()
            counted = await text("/debug/pprof/goroutine?debug=1")
            named = await text("/debug/pprof/goroutine?debug=2")
            tasks.cancel_scope.cancel()
        finish.set()
        thread.join()
        assert "\n2 @ \n#\t" in counted
        assert "wait_in_a_task" in counted
        assert "wait_in_a_thread" in counted
        assert "task the-task:\n#\t" in named
        assert "thread the-thread:\n#\t" in named
        assert named.index("thread the-thread") < named.index("wait_in_a_thread")

    async def test_objects_are_counted_by_type(self):
        class Leak:
            pass

        leaks = [Leak() for _ in range(1234)]
        assert f"\n1234 @ {__name__}.{Leak.__qualname__}\n" in await text("/debug/pprof/heap?debug=1")
        del leaks

    async def test_gc_collects_garbage_first(self):
        class Cycle:
            def __init__(self) -> None:
                self.itself = self

        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                Cycle()
            assert Cycle.__qualname__ in await text("/debug/pprof/heap?debug=1")
            assert Cycle.__qualname__ in await text("/debug/pprof/heap?debug=1&gc=0")
            assert Cycle.__qualname__ not in await text("/debug/pprof/heap?debug=1&gc=1")
        finally:
            gc.enable()

    async def test_the_heap_lists_lines_with_tracemalloc(self):
        tracemalloc.start()
        try:
            taken = bytes(3_210_000)
            shown = await text("/debug/pprof/heap?debug=1")
        finally:
            tracemalloc.stop()
        assert any(line.startswith("3210") and "test_debug.py:" in line and len(taken) for line in shown.split("\n"))

    async def test_seconds_gives_the_changes_in_that_time(self, monkeypatch):
        counts = iter([{"a": 1, "b": 5, "same": 2}, {"a": 4, "b": 3, "same": 2}])
        monkeypatch.setitem(debug.PROFILES, "heap", lambda: Counter(next(counts)))
        response = await delta("/debug/pprof/heap?seconds=7", 7)
        assert ("Content-Disposition", 'attachment; filename="heap-delta"') in response.headers
        assert response.body == b"heap profile: total 1\n3 @ a\n-2 @ b\n"

    async def test_seconds_have_a_limit(self):
        await delta(f"/debug/pprof/block?seconds={10**15}", debug.PROFILE_SECONDS_MAX)

    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            ("seconds=x", 'invalid value for "seconds" - must be a positive integer\n'),
            ("seconds=-1", 'invalid value for "seconds" - must be a positive integer\n'),
            ("seconds=0", 'invalid value for "seconds" - must be a positive integer\n'),
            ("seconds=9223372036854775808", 'invalid value for "seconds" - must be a positive integer\n'),
            ("seconds=1&debug=1", "seconds and debug params are incompatible\n"),
        ],
    )
    async def test_invalid_seconds_are_refused_in_the_words_of_go(self, query, reason):
        response = await ask(f"/debug/pprof/goroutine?{query}")
        assert response == Response(400, (TEXT, NO_SNIFF, ("X-Go-Pprof", "1")), reason.encode())

    async def test_an_invalid_query_is_refused(self):
        with pytest.raises(HTTPError):
            await ask("/debug/pprof/heap?a=%zz")


class TestCpuProfile:
    async def test_stacks_are_folded_and_counted(self):
        finish = threading.Event()

        def wait_here() -> None:
            finish.wait()

        thread = threading.Thread(target=wait_here)
        thread.start()
        shown = debug._sample(0.03, threading.Event())
        finish.set()
        thread.join()
        [stack] = [stack for stack in shown if "wait_here" in stack]
        assert stack.startswith("threading.Thread._bootstrap;")
        assert stack.index("wait_here") < stack.index("threading.Event.wait")
        assert shown[stack] >= 1
        assert not any("debug._sample" in stack for stack in shown)

    @pytest.mark.parametrize(
        ("query", "seconds"),
        [("seconds=2", 2), ("", 30), ("seconds=x", 30), ("seconds=-3", 30), ("seconds=99999", 600)],
    )
    async def test_the_duration_of_a_cpu_profile(self, monkeypatch, query, seconds):
        monkeypatch.setattr(debug, "_sample", lambda wanted, stop: Counter({f"a;b {wanted}": 3, "c": 9}))
        assert await attachment(f"/debug/pprof/profile?{query}", "profile") == f"c 9\na;b {seconds} 3\n"

    async def test_one_cpu_profile_at_a_time(self, monkeypatch):
        stopped: list[threading.Event] = []

        def sample(seconds: float, stop: threading.Event) -> Counter[str]:
            stop.wait()
            stopped.append(stop)
            return Counter()

        monkeypatch.setattr(debug, "_sample", sample)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "/debug/pprof/profile")
            await anyio.wait_all_tasks_blocked()
            response = await ask("/debug/pprof/profile?seconds=1")
            assert response.status == 500
            assert response.body == b"Could not enable CPU profiling: cpu profiling already in use\n"
            tasks.cancel_scope.cancel()
        monkeypatch.setattr(debug, "_sample", lambda seconds, stop: Counter())
        assert (await ask("/debug/pprof/profile?seconds=1")).status == 200


class TestMemory:
    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            ("", 'parsing "": invalid syntax'),
            ("?rate=", 'parsing "": invalid syntax'),
            ("?rate=1.5", 'parsing "1.5": invalid syntax'),
            ("?rate=%22%5C", r'parsing "\"\\": invalid syntax'),
            ("?rate=9223372036854775808", 'parsing "9223372036854775808": value out of range'),
            ("?rate=" + "9" * 5000, f'parsing "{"9" * 5000}": value out of range'),
        ],
    )
    async def test_an_invalid_rate_is_refused(self, query, reason):
        response = await ask(f"/debug/setblockrate{query}", "PUT")
        assert response == Response.plain(f"invalid block rate : strconv.Atoi: {reason}", status=400)

    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("PUT", "/debug/setblockrate?rate=-9223372036854775808"),
            ("PUT", "/debug/setblockrate?rate=+" + "0" * 5000 + "1"),
            ("POST", "/debug/freememory"),
        ],
    )
    async def test_success_is_answered_as_by_nsqd(self, method, target):
        with pytest.raises(HTTPError) as caught:
            await ask(target.replace("+", "%2B"), method)
        assert (caught.value.status, caught.value.message) == (500, "INTERNAL_ERROR")

    async def test_freeing_memory_collects_garbage_with_or_without_glibc(self, monkeypatch):
        import ctypes

        class OtherLibrary:
            def __init__(self, name: None) -> None:
                pass

        monkeypatch.setattr(ctypes, "CDLL", OtherLibrary)
        collected = []
        monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
        with pytest.raises(HTTPError):
            await ask("/debug/freememory", "POST")
        assert collected
