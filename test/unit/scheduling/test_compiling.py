"""When what grammars need is made: not at a start, nor between requests."""

from __future__ import annotations

from support.fake_grammar import HashGrammars

from runtime.srt.scheduling.compiling import WARM_UP_AFTER_SECONDS, CompilingRequests


class CountedStore(HashGrammars):
    num_warm_ups = 0

    def warm_up(self) -> None:
        self.num_warm_ups += 1


def num_warm_ups(rests: list[float]) -> int:
    store = CountedStore()
    requests = CompilingRequests(store, 8, jumps=True)
    for now in rests:
        requests.rest(now)
    return store.num_warm_ups


def test_the_first_moment_of_rest_is_left_to_requests() -> None:
    assert num_warm_ups([100.0, 100.0 + WARM_UP_AFTER_SECONDS / 2]) == 0


def test_a_rest_long_enough_is_used() -> None:
    assert num_warm_ups([100.0, 101.0]) == 1


def test_rests_with_work_in_between_do_not_add_up() -> None:
    assert num_warm_ups([100.0, 110.0, 120.0, 130.0]) == 0
