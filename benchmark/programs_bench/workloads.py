"""Which programs run with which arguments: sizes in tokens are approximate, counts exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from runtime import Program

from . import programs, texts

_RECORD = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 24},
        "year": {"type": "integer", "minimum": 1700, "maximum": 2000},
        "built": {"enum": ["bridge", "library", "harbour", "market", "other"]},
        "people": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
        "is_open": {"type": "boolean"},
    },
    "required": ["place", "year", "built", "people", "is_open"],
    "additionalProperties": False,
}

Arguments = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A program, how many runs of it start at once, and how their arguments are made.

    needs: what a backend must be able to do beyond going on from text: "select", "messages",
    "regex". is_of_paper: one of the paper's set; others stand beside it.
    """

    name: str
    about: str
    program: Program
    num_programs: int
    arguments: Callable[[Random, int], Arguments]
    needs: str | None = None
    is_of_paper: bool = True

    @property
    def has_grammar(self) -> bool:
        """Whether a server compiles a grammar when it first meets this."""
        return self.needs in ("regex", "messages")


def _few_shot(rng: Random, count: int) -> Arguments:
    subjects = [
        "The following are multiple choice questions about "
        f"{texts.topic(rng)}.\n\n"
        + "".join(f"{texts.exam_question(rng)}\nAnswer: {rng.choice('ABCD')}\n\n" for _ in range(5))
        for _ in range(2)
    ]
    return [
        {"examples": subjects[number % 2], "question": texts.exam_question(rng)}
        for number in range(count)
    ]


def _choose_ending(rng: Random, count: int) -> Arguments:
    examples = "".join(f"{texts.scene(rng)}{texts.endings(rng, 1)[0]}\n\n" for _ in range(20))
    return [
        {"examples": examples, "scene": texts.scene(rng), "endings": texts.endings(rng, 4)}
        for _ in range(count)
    ]


def _react(rng: Random, count: int) -> Arguments:
    instructions = (
        "Answer the question by steps of thought and observation. A search finds paragraphs.\n"
        + "".join(
            f"\nQuestion: {texts.question(rng)}\nThought 1: I should look this up.\n"
            f"Observation 1: {texts.passage(rng, 4)}\nThought 2: The second sentence tells it.\n"
            f"Final answer: {texts.person(rng)}\n"
            for _ in range(6)
        )
    )
    return [
        {
            "instructions": instructions,
            "question": texts.question(rng),
            "observations": [texts.passage(rng, 4) for _ in range(4)],
        }
        for _ in range(count)
    ]


def _generative_agents(rng: Random, count: int) -> Arguments:
    examples = [
        "Turn a sentence into subject, verb and object. Examples:\n"
        + "".join(
            f"Sentence: {texts.person(rng)} is in {texts.place(rng)}.\n"
            f"Triple: ({texts.person(rng)}, is, {texts.place(rng)})\n"
            for _ in range(5)
        ),
        "Choose where to go from the places that are named. Examples:\n" + texts.passage(rng, 14),
        "Choose what to use from the things that are named. Examples:\n" + texts.passage(rng, 7),
    ]
    return [
        {
            "persona": f"{texts.person(rng)} lives in {texts.place(rng)}. {texts.passage(rng, 7)}",
            "events": [texts.sentence(rng) for _ in range(2)],
            "places": [texts.passage(rng, 3) for _ in range(2)],
            "examples": examples,
        }
        for _ in range(count)
    ]


def _tree_of_thought(rng: Random, count: int) -> Arguments:
    instructions = "Solve the problem step by step. Examples:\n" + "".join(
        f"\nProblem: {texts.question(rng)}\nStep 1: {texts.sentence(rng)}\n"
        f"Step 2: {texts.sentence(rng)}\nThe answer is {texts.person(rng)}.\n"
        for _ in range(6)
    )
    return [
        {"instructions": instructions, "question": texts.exam_question(rng)} for _ in range(count)
    ]


def _skeleton_of_thought(rng: Random, count: int) -> Arguments:
    instructions = "Write a short outline of the answer, then each point in full. Examples:\n"
    instructions += "".join(
        f"\nQuestion: {texts.question(rng)}\nOutline: 1. Place. 2. Time. 3. People. 4. Reason.\n"
        f"Point 1 in full: {texts.sentence(rng)}\n"
        for _ in range(3)
    )
    return [{"instructions": instructions, "question": texts.question(rng)} for _ in range(count)]


def _judge(rng: Random, count: int) -> Arguments:
    instructions = (
        "You judge essays in several dimensions and give a grade from 1 to 10. Be strict: an essay "
        "that names no source has no evidence."
    )
    return [{"instructions": instructions, "essay": texts.passage(rng, 20)} for _ in range(count)]


def _fill_json(rng: Random, count: int) -> Arguments:
    return [{"page": texts.passage(rng, 36)} for _ in range(count)]


def _extract_json(rng: Random, count: int) -> Arguments:
    instructions = (
        "Extract what the text says as JSON. Example:\nText: "
        + texts.passage(rng, 6)
        + '\nRecord: {"place": "Dunmere", "year": 1871, "built": "market", "people": '
        '["Ada Brandt"], "is_open": true}'
    )
    return [
        {"instructions": instructions, "document": texts.passage(rng, 4), "schema": _RECORD}
        for _ in range(count)
    ]


def _chat(shortest: int, longest: int) -> Callable[[Random, int], Arguments]:
    def arguments(rng: Random, count: int) -> Arguments:
        return [
            {
                "turns": [texts.passage(rng, rng.randint(9, 18)) for _ in range(4)],
                "lengths": [rng.randint(shortest, longest) for _ in range(4)],
            }
            for _ in range(count)
        ]

    return arguments


def _answer_from_passages(rng: Random, count: int) -> Arguments:
    demonstrations = "Answer questions with short factual answers.\n"
    demonstrations += "".join(
        f"\nQuestion: {texts.question(rng)}\nAnswer: {texts.person(rng)}\n" for _ in range(12)
    )
    demonstrations += "\nNow from passages, with your reasoning.\n"
    demonstrations += "".join(
        "".join(f"\nPassage: {texts.passage(rng, 3)}" for _ in range(3))
        + f"\nQuestion: {texts.question(rng)}\nReasoning: Let's think step by step in order to "
        f"produce the answer. {texts.sentence(rng)}\nAnswer: {texts.person(rng)}\n"
        for _ in range(4)
    )
    return [
        {
            "demonstrations": demonstrations,
            "passages": [texts.passage(rng, 3) for _ in range(3)],
            "question": texts.question(rng),
        }
        for _ in range(count)
    ]


def _hop_and_answer(rng: Random, count: int) -> Arguments:
    demonstrations = [
        "Write a query that finds what is still missing.\n"
        + "".join(
            f"\nPassage: {texts.sentence(rng)}\nQuestion: {texts.question(rng)}\n"
            f"Search query: {texts.place(rng)} {texts.person(rng)}\n"
            for _ in range(5)
        ),
        "Answer the question from the passages, with your reasoning.\n"
        + "".join(
            f"\nPassage: {texts.passage(rng, 2)}\nQuestion: {texts.question(rng)}\n"
            f"Reasoning: {texts.sentence(rng)}\nAnswer: {texts.person(rng)}\n"
            for _ in range(4)
        ),
    ]
    return [
        {
            "demonstrations": demonstrations,
            "question": texts.question(rng),
            "passages": [[texts.passage(rng, 2) for _ in range(3)] for _ in range(2)],
        }
        for _ in range(count)
    ]


WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            "few-shot",
            "MMLU: 5 examples of one of 2 subjects (600 tokens), a question of 110, 1 token",
            programs.few_shot,
            32,
            _few_shot,
        ),
        Workload(
            "hellaswag",
            "20 examples (1,300 tokens), a scene of 55, 4 endings of 10 tokens scored",
            programs.choose_ending,
            16,
            _choose_ending,
            "select",
        ),
        Workload(
            "react",
            "6 examples (1,100 tokens), 4 steps of 24 tokens and a recorded observation of 115",
            programs.react,
            12,
            _react,
        ),
        Workload(
            "generative-agents",
            "2 events with 5 questions (prompts of 60 to 520 tokens, answers of 2 to 20)",
            programs.generative_agent,
            8,
            _generative_agents,
        ),
        Workload(
            "tree-of-thought",
            "6 examples (650 tokens), 2 levels of 3 steps of 32 tokens, each judged, answer of 24",
            programs.tree_of_thought,
            8,
            _tree_of_thought,
        ),
        Workload(
            "skeleton-of-thought",
            "3 examples (300 tokens), outline of 24 tokens, 4 points of 32 at once",
            programs.skeleton_of_thought,
            12,
            _skeleton_of_thought,
        ),
        Workload(
            "llm-judge",
            "essay of 600 tokens, 5 judgements of 24 tokens at once, a grade",
            programs.judge_essay,
            12,
            _judge,
        ),
        Workload(
            "json",
            "a page of 1,000 tokens, 5 fields of a record, each to a regex, of 8 to 24 tokens",
            programs.fill_json,
            12,
            _fill_json,
            "regex",
        ),
        Workload(
            "chat-short",
            "4 turns of 256 to 512 tokens, answers of 4 to 8",
            programs.chat,
            8,
            _chat(4, 8),
        ),
        Workload(
            "chat-long",
            "4 turns of 256 to 512 tokens, answers of 256 to 512",
            programs.chat,
            4,
            _chat(256, 512),
        ),
        Workload(
            "rag",
            "12 short and 4 full examples (2,000 tokens), 3 passages of 85, answer of 48",
            programs.answer_from_passages,
            12,
            _answer_from_passages,
        ),
        Workload(
            "rag-hops",
            "2 hops: examples (400 tokens), query, 3 passages of 55; examples (550), answer of 38",
            programs.hop_and_answer,
            12,
            _hop_and_answer,
            is_of_paper=False,
        ),
        Workload(
            "json-schema",
            "instructions of 230 tokens, a text of 110, a record to a JSON schema in one call",
            programs.extract_json,
            16,
            _extract_json,
            "messages",
            is_of_paper=False,
        ),
    )
}
