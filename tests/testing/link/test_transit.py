from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.testing.link.transit import FREE, NS_PER_S, Flow, Transit


def test_delayed_bytes_hold_those_after_them() -> None:
    transit = Transit()
    transit.push(b"a", Flow(delay_ns=10), 0)
    transit.push(b"b", FREE, 1)
    assert transit.next_due == 10
    assert transit.pull(9) == b""
    assert transit.pull(10) == b"ab"
    assert transit.next_due is None


def test_rate_is_kept_and_made_up_for() -> None:
    transit = Transit()
    transit.push(bytes(1000), Flow(rate=1000), 0)
    assert len(transit.pull(0)) == 10
    assert transit.next_due == NS_PER_S // 100
    assert len(transit.pull(NS_PER_S // 2)) == 500
    assert transit.size == 490


def test_rate_is_not_saved_up_while_idle() -> None:
    transit = Transit()
    transit.push(b"abc", Flow(rate=1), 10 * NS_PER_S)
    assert transit.pull(10 * NS_PER_S) == b"a"
    assert transit.next_due == 11 * NS_PER_S


def test_slices_leave_alone() -> None:
    transit = Transit()
    transit.push(b"a", FREE, 0)
    transit.push(b"bcdef", Flow(slice_size=2), 0)
    assert [transit.pull(0) for _ in range(5)] == [b"a", b"bc", b"de", b"f", b""]


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1),
            st.builds(Flow, delay_ns=st.integers(0, 50), rate=st.integers(0, 10**9), slice_size=st.integers(0, 3)),
            st.integers(0, 100),
        )
    )
)
def test_no_byte_is_lost_or_overtaken(pushes: list[tuple[bytes, Flow, int]]) -> None:
    transit, now_ns, departed = Transit(), 0, []
    for data, flow, wait_ns in pushes:
        now_ns += wait_ns
        transit.push(data, flow, now_ns)
        departed.append(transit.pull(now_ns))
    while (due_ns := transit.next_due) is not None:
        departed.append(transit.pull(max(due_ns, now_ns)))
        assert departed[-1]
    assert b"".join(departed) == b"".join(data for data, _, _ in pushes)
    assert transit.size == 0
