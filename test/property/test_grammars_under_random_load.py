"""Constrained requests among free ones: the grammar's own greedy text, whatever happens to them.

Jumps on and off, steps overlapped or not, retractions, chunks, aborts and grammars that compile
while others run. The accounting identity is checked after every step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from support.fake_executor import continuation, next_token, score
from support.fake_grammar import HashGrammar
from support.scheduler_rig import Outcome, SchedulerRig

from runtime.srt.messages import AbortRequest, GrammarReady
from runtime.srt.sampling_params import LogprobOptions

VOCABULARY = 40
END_ID = VOCABULARY - 1


def _greedy(prompt: list[int], grammar: HashGrammar) -> list[int]:
    """What a model without jumps draws: at each place the next legal token from its choice on."""
    output: list[int] = []
    while END_ID not in output:
        token = next_token([*prompt, *output], VOCABULARY)
        allowed = grammar.allowed(output)
        while token not in allowed:
            token = (token + 1) % VOCABULARY
        output.append(token)
    return output


@dataclass
class _Asked:
    prompt: list[int]
    max_new: int
    grammar: HashGrammar | None
    wants_logprobs: bool

    @property
    def expected(self) -> list[int]:
        if self.grammar is None:
            return continuation(self.prompt, self.max_new, VOCABULARY)
        return _greedy(self.prompt, self.grammar)[: self.max_new]


def _random_rig(rng: random.Random) -> SchedulerRig:
    return SchedulerRig(
        total_tokens=rng.choice([64, 100, 200]),
        page_size=rng.choice([1, 1, 4]),
        vocab_size=VOCABULARY,
        context_length=44,
        max_running_requests=rng.choice([1, 2, 5, 9]),
        chunk_tokens=rng.choice([None, 4, 16]),
        overlap_depth=rng.choice([0, 1]),
        jump_forward=rng.random() < 0.7,
        test_retract_every=rng.choice([0, 0, 2, 5]),
        conservativeness=rng.choice([0.01, 1.0]),
        mix_decode_into_prefill=rng.random() < 0.7,
        eos_token_ids=frozenset({END_ID}),
    )


@pytest.mark.parametrize("seed", range(80))
def test_output_is_the_grammars_greedy_text(seed: int) -> None:
    rng = random.Random(seed)
    rig = _random_rig(rng)
    asked: dict[str, _Asked] = {}
    aborted: set[str] = set()

    for number in range(60):
        rid = f"r{number}"
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        grammar, source = None, None
        max_new = rng.randint(1, 42 - len(prompt))
        if rng.random() < 0.7:
            # The whole text fits or is cut: all completions are as long as each other.
            length = rng.randint(0, 20)
            key = f"g{number}"
            grammar = HashGrammar(number, length, END_ID)
            source = rig.grammars.add(key, grammar, is_ready=rng.random() < 0.7)
        wants_logprobs = rng.random() < 0.4
        asked[rid] = _Asked(prompt, max_new, grammar, wants_logprobs)
        rig.submit(
            rid,
            prompt,
            max_new_tokens=max_new,
            stream=rng.random() < 0.7,
            ignore_eos=grammar is None or rng.random() < 0.3,
            logprobs=LogprobOptions() if wants_logprobs else None,
            grammar=source,
        )
        for _ in range(rng.choice([0, 1, 3])):
            rig.step()
        if rng.random() < 0.1:
            victim = rng.choice(list(asked))
            aborted.add(victim)
            rig.scheduler.receive(AbortRequest(victim))
        if rig.grammars.compiling and rng.random() < 0.5:
            _finish_compiling(rig)
    while rig.grammars.compiling:
        _finish_compiling(rig)
    rig.run()

    for rid, facts in asked.items():
        outcome = rig.outcomes[rid]
        assert outcome.finish is not None, f"{rid} was lost"
        if facts.wants_logprobs:
            _check_logprobs(outcome, facts)
        expected = facts.expected
        if outcome.finish.type == "abort":
            assert rid in aborted, (rid, outcome.finish)
            assert outcome.token_ids == expected[: len(outcome.token_ids)], rid
            continue
        assert outcome.token_ids == expected, rid
        is_whole = facts.grammar is not None and (
            expected[-1] == END_ID or facts.grammar.allowed(expected) == [END_ID]
        )
        assert outcome.finish.type == ("stop" if is_whole else "length"), rid


def _check_logprobs(outcome: Outcome, facts: _Asked) -> None:
    """Every output token has its own, those that were not drawn too."""
    output = outcome.token_ids
    contexts = [[*facts.prompt, *output[:i]] for i in range(len(output))]
    assert [one.token_id for one in outcome.output_logprobs] == output
    assert [one.logprob for one in outcome.output_logprobs] == [
        score(context, token) for context, token in zip(contexts, output, strict=True)
    ]
    for i, one in enumerate(outcome.output_logprobs):
        if one.is_forced:
            assert facts.grammar is not None and len(facts.grammar.allowed(output[:i])) == 1


def _finish_compiling(rig: SchedulerRig) -> None:
    key = rig.grammars.compiling.pop()
    rig.scheduler.receive(GrammarReady(key))


def test_forced_tokens_are_computed_together() -> None:
    """As many steps as there are places with a choice, and one for the prompt's own."""
    grammar = HashGrammar(5, 24, END_ID)
    output = _greedy([1, 2], grammar)
    num_choices = sum(len(grammar.allowed(output[:i])) > 1 for i in range(len(output)))
    steps: dict[bool, int] = {}

    for jumps in (False, True):
        rig = SchedulerRig(
            vocab_size=VOCABULARY, jump_forward=jumps, eos_token_ids=frozenset({END_ID})
        )
        rig.submit("r", [1, 2], max_new_tokens=40, grammar=rig.grammars.add("g", grammar))
        rig.run()
        assert rig.outcomes["r"].token_ids == output
        steps[jumps] = len(rig.executor.step_tokens)

    assert steps[False] == len(output)
    assert steps[True] <= num_choices + 1 < len(output)


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_forced_tokens_have_log_probabilities_and_are_marked(overlap_depth: int) -> None:
    grammar = HashGrammar(5, 24, END_ID)
    output = _greedy([1, 2], grammar)
    num_choices = sum(len(grammar.allowed(output[:i])) > 1 for i in range(len(output)))
    rig = SchedulerRig(
        vocab_size=VOCABULARY, overlap_depth=overlap_depth, eos_token_ids=frozenset({END_ID})
    )
    source = rig.grammars.add("g", grammar)

    rig.submit("r", [1, 2], max_new_tokens=40, grammar=source, logprobs=LogprobOptions())
    rig.run()

    found = rig.outcomes["r"].output_logprobs
    assert rig.outcomes["r"].token_ids == output
    assert [one.logprob for one in found] == [
        score([1, 2, *output[:i]], token) for i, token in enumerate(output)
    ]
    # The first token, the end and what follows a choice may be drawn.
    assert [one.is_forced for one in found[1:-1]] == [
        len(grammar.allowed(output[:i])) == 1 for i in range(1, len(output) - 1)
    ]
    assert not found[-1].is_forced
    # With overlap a step for the first of a run of forced tokens is in flight already.
    assert len(rig.executor.step_tokens) <= num_choices * (1 + overlap_depth) + 2


def test_a_stop_id_among_forced_tokens_ends_the_output_there_with_its_log_probability() -> None:
    grammar = HashGrammar(5, 24, END_ID)
    output = _greedy([1, 2], grammar)
    forced = [i for i in range(2, 24) if len(grammar.allowed(output[:i])) == 1]
    stop = next(output[i] for i in forced if output.index(output[i]) == i and i + 1 in forced)
    rig = SchedulerRig(vocab_size=VOCABULARY, eos_token_ids=frozenset({END_ID}))
    source = rig.grammars.add("g", grammar)

    rig.submit(
        "r",
        [1, 2],
        max_new_tokens=40,
        grammar=source,
        logprobs=LogprobOptions(),
        stop_token_ids=(stop,),
    )
    rig.run()

    expected = output[: output.index(stop) + 1]
    assert rig.outcomes["r"].token_ids == expected
    assert [one.token_id for one in rig.outcomes["r"].output_logprobs] == expected


def test_stream_of_jumps_holds_every_token_once_and_in_order() -> None:
    grammar = HashGrammar(5, 24, END_ID)
    rig = SchedulerRig(vocab_size=VOCABULARY, eos_token_ids=frozenset({END_ID}))

    rig.submit("r", [1, 2], max_new_tokens=40, grammar=rig.grammars.add("g", grammar))
    rig.run()

    outcome = rig.outcomes["r"]
    assert outcome.token_ids == _greedy([1, 2], grammar)
    assert 1 < outcome.num_deltas < len(outcome.token_ids)


def test_requests_whose_grammar_compiles_count_as_queued() -> None:
    rig = SchedulerRig(
        vocab_size=VOCABULARY,
        max_queued_requests=1,
        max_running_requests=1,
        eos_token_ids=frozenset({END_ID}),
    )
    source = rig.grammars.add("g", HashGrammar(5, 4, END_ID), is_ready=False)
    for number in range(4):
        rig.submit(f"r{number}", [1, 2], max_new_tokens=9, grammar=source)
        rig.step()

    refused = [one.finish.status_code for one in rig.outcomes.values() if one.finish is not None]
    assert refused and set(refused) == {503}
    _finish_compiling(rig)
    rig.run()
    assert sum(one.finish is not None for one in rig.outcomes.values()) == 4
