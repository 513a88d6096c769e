"""The known differences: each rule names the row of docs/conformance.md that has the reason."""

from __future__ import annotations

import re
from typing import Final

from tests.differential.comparison import Difference, Rule
from tests.differential.plan import Plan

_BODY_SIZE_MAX: Final = 5 * 1024 * 1024
"""nsqd's default."""

_TOPOLOGY: Final = ("/topology_zone", "/topology_region", "/global_msg_count")

_BACKEND_DEPTH: Final = re.compile(r"be-depth: \d+ *")


def _is_name_of_program(difference: Difference, plan: Plan) -> bool:
    return difference.where.endswith("/headers/server") and difference.reference == "absent"


def _is_topology(difference: Difference, plan: Plan) -> bool:
    return difference.where.endswith(_TOPOLOGY) and difference.reference == "absent"


def _is_memory_order(difference: Difference, plan: Plan) -> bool:
    # After a start, messages are on disk with any limit.
    if "mem-queue-size" not in plan.options and all(step.verb != "hand over" for step in plan.steps):
        return False
    if difference.where == "http/body":
        reference, ours = (_BACKEND_DEPTH.sub("", str(text)) for text in (difference.reference, difference.ours))
        return reference == ours
    return difference.where.endswith("/backend_depth")


def _is_read_to_its_end(difference: Difference, plan: Plan) -> bool:
    return difference.where == "damaged files" and bool(difference.reference) and not difference.ours


def _is_unread_body(difference: Difference, plan: Plan) -> bool:
    size_max = int(plan.options.get("max-body-size", _BODY_SIZE_MAX))
    return (
        difference.where == "http/headers/connection"
        and (difference.reference, difference.ours) == ("absent", "close")
        and len(difference.step.values.get("body") or "") > size_max
    )


def _is_null(difference: Difference, plan: Plan) -> bool:
    return difference.where == "http/body" and (difference.reference, difference.ours) == (["null"], ["[]"])


def _is_deleted_meanwhile(difference: Difference, plan: Plan) -> bool:
    return difference.where.startswith("answers/") and difference.reference == "error E_MPUB_FAILED MPUB failed exiting"


def _is_delivered_while_emptied(difference: Difference, plan: Plan) -> bool:
    before = plan.steps[max(difference.number - 1, 0) : difference.number]
    return (
        any(str(step.values.get("path")).startswith("/channel/empty") for step in before)
        and difference.where.endswith("/in_flight_count")
        and difference.reference > difference.ours
    )


RULES: Final = (
    Rule("identity of the program", _is_name_of_program),
    Rule("keys of topology in `/info`, `/stats` and the answer to IDENTIFY", _is_topology),
    Rule("order of messages beyond the memory limit", _is_memory_order),
    Rule("a file that was read to its end when the next one is started", _is_read_to_its_end),
    Rule("a body over HTTP that is longer than `--max-body-size`", _is_unread_body),
    Rule("`PUT /config/nsqlookupd_tcp_addresses` with `null`", _is_null),
    Rule("messages that wait for a consumer while its channel is emptied", _is_delivered_while_emptied, parts=True),
    Rule("a topic that is deleted while the body of an MPUB to it arrives", _is_deleted_meanwhile, parts=True),
)


def explain(difference: Difference, plan: Plan) -> Rule | None:
    """Return the rule of a known difference; None if it is not known."""
    return next((rule for rule in RULES if rule.explains(difference, plan)), None)
