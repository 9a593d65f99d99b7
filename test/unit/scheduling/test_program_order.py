"""Which waiting requests go first when the scheduler keeps programs together."""

from __future__ import annotations

import pytest
from support.scheduler_rig import SchedulerRig

PROMPT_TOKENS = 8


def _rig(**changes: object) -> SchedulerRig:
    settings: dict[str, object] = {
        "max_running_requests": 1,
        "policy": "fcfs",
        "program_order": True,
        "ageing_stride": 10**9,
        **changes,
    }
    return SchedulerRig(**settings)  # type: ignore[arg-type]  # the rig's own and the config's


def _submit(rig: SchedulerRig, rid: str, **changes: object) -> None:
    """A request whose prompt nobody shares, of the program that its first letter names."""
    number = len(rig.outcomes)
    program_id = changes.pop("program_id", rid[0])
    prompt = [number % 50, *[number // 50] * (PROMPT_TOKENS - 1)]
    rig.submit(rid, prompt, program_id=program_id, **changes)  # type: ignore[arg-type]


def _order(rig: SchedulerRig) -> list[str]:
    """The requests in the order in which they finish, which is that of their admission here."""
    rig.run()
    return sorted(rig.outcomes, key=lambda rid: rig.outcomes[rid].finished_at_step)


def test_the_branches_of_a_program_run_one_after_the_other() -> None:
    rig = _rig()
    for rid in ("a1", "b1", "c1", "b2", "a2", "c2"):
        _submit(rig, rid)

    assert _order(rig) == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_without_the_option_they_run_as_they_came() -> None:
    rig = _rig(program_order=False)
    for rid in ("a1", "b1", "a2", "b2"):
        _submit(rig, rid)

    assert _order(rig) == ["a1", "b1", "a2", "b2"]


def test_a_program_that_has_begun_goes_before_older_requests_of_others() -> None:
    rig = _rig()
    _submit(rig, "a1")
    rig.step()  # a has begun
    _submit(rig, "b1")
    _submit(rig, "x1", program_id=None)
    _submit(rig, "a2")

    assert _order(rig) == ["a1", "a2", "b1", "x1"]


def test_of_two_that_have_begun_the_older_goes_first() -> None:
    rig = _rig(max_running_requests=2)
    _submit(rig, "a1")
    _submit(rig, "b1")
    rig.step()
    for rid in ("b2", "b3", "a2", "a3"):
        _submit(rig, rid)

    assert _order(rig)[2:4] == ["a2", "a3"]


def test_a_higher_priority_goes_before_a_program_that_has_begun() -> None:
    rig = _rig()
    _submit(rig, "a1")
    rig.step()
    _submit(rig, "a2")
    _submit(rig, "b1", priority=1)

    assert _order(rig) == ["a1", "b1", "a2"]


def test_tenants_that_use_the_same_id_have_two_programs() -> None:
    rig = _rig()
    _submit(rig, "a1", tenant="one")
    rig.step()
    _submit(rig, "b1")
    _submit(rig, "a2", tenant="two")

    assert _order(rig) == ["a1", "b1", "a2"]


def test_a_program_that_paused_for_long_begins_anew() -> None:
    rig = _rig()
    _submit(rig, "a1")
    rig.run()
    rig.now += 601.0
    _submit(rig, "x1", max_new_tokens=20)
    rig.step()
    _submit(rig, "b1")
    _submit(rig, "a2")

    assert _order(rig) == ["a1", "x1", "b1", "a2"]


@pytest.mark.parametrize("stride", [2, 8])
def test_a_stream_of_one_program_cannot_keep_others_waiting(stride: int) -> None:
    rig = _rig(ageing_stride=stride, max_running_requests=1)
    _submit(rig, "a0")
    rig.step()
    _submit(rig, "x", program_id=None)
    for number in range(1, 40):
        _submit(rig, f"a{number}")

    assert _order(rig).index("x") <= stride
