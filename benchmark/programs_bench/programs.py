"""The programs, after those of the SGLang paper (Zheng et al., 2024, section 6), smaller.

What the model writes has a fixed length, so that every contestant does the same work whatever the
model makes of it; what a tool or a user says comes from the arguments, as in a recorded trace.
"""

from __future__ import annotations

from typing import Any

from runtime import ProgramState, assistant, function, gen, select, system, user


def written(name: str, num_tokens: int) -> Any:  # a Gen
    """Greedy text of exactly num_tokens tokens."""
    return gen(name, num_tokens, temperature=0, ignore_eos=True)


@function
def few_shot(s: ProgramState, examples: str, question: str) -> None:
    """MMLU: five answered questions, then one whose letter is the answer."""
    s += examples + question + "\nAnswer:"
    s += written("answer", 1)


@function
def choose_ending(s: ProgramState, examples: str, scene: str, endings: list[str]) -> None:
    """HellaSwag: twenty finished scenes, then one whose end is chosen by its likelihood."""
    s += examples + scene
    s += select("ending", endings)


@function
def react(s: ProgramState, instructions: str, question: str, observations: list[str]) -> None:
    """An agent that thinks, acts and is told what it sees; the tool's answers are recorded."""
    s += instructions + f"\nQuestion: {question}\n"
    for number, observation in enumerate(observations, 1):
        s += f"Thought {number}:"
        s += written(f"thought{number}", 24)
        s += f"\nObservation {number}: {observation}\n"
    s += "Final answer:"
    s += written("answer", 12)


@function
def generative_agent(s: ProgramState, memories: str, events: list[str]) -> None:
    """A character with memories: what it does, says and feels at each event, asked apart."""
    s += memories
    for number, event in enumerate(events):
        branches = s.fork(3)
        for branch, asked in zip(branches, ("do next", "say about it", "feel"), strict=True):
            branch += f"\nEvent: {event}\nWhat does the character {asked}?"
            branch += written(f"reply{number}", 16)
        branches.join()


@function
def tree_of_thought(s: ProgramState, instructions: str, question: str) -> str:
    """Two levels: three proposals for each state, each judged, one kept; then the answer."""
    s += instructions + f"\nProblem: {question}\n"
    best = s
    for level in range(2):
        branches = best.fork(3)
        for number, branch in enumerate(branches):
            branch += f"Step {level + 1}, idea {number + 1}:"
            branch += written("step", 32)
        judges = [branch.copy() for branch in branches]
        for judge in judges:
            judge += "\nHow promising is this, from 1 to 9?"
            judge += written("score", 2)
        places = range(len(judges))
        best = branches[max(places, key=lambda place: (_digit(judges[place]["score"]), -place))]
        best += "\n"
    best += "The answer is"
    best += written("answer", 24)
    return best.text()


@function
def skeleton_of_thought(s: ProgramState, instructions: str, question: str) -> None:
    """A short outline first, then all of its points at once."""
    s += instructions + f"\nQuestion: {question}\nOutline:"
    s += written("outline", 24)
    branches = s.fork(4)
    for number, branch in enumerate(branches):
        branch += f"\nPoint {number + 1} in full:"
        branch += written("point", 32)
    branches.join()


@function
def judge_essay(s: ProgramState, instructions: str, essay: str) -> None:
    """Branch, solve, merge: an essay judged in five dimensions, and a grade from the judgements."""
    s += instructions + f"\nEssay: {essay}\n"
    dimensions = ("clarity", "evidence", "structure", "originality", "style")
    branches = s.fork(len(dimensions))
    for branch, dimension in zip(branches, dimensions, strict=True):
        branch += f"\nJudgement of the essay's {dimension}:"
        branch += written("judgement", 24)
    branches.join()
    s += "\n".join(f"{d}: {j}" for d, j in zip(dimensions, s["judgement"], strict=True))
    s += "\nGrade:"
    s += written("grade", 2)


@function
def extract_json(s: ProgramState, instructions: str, document: str, schema: dict[str, Any]) -> None:
    """A record from a text, in the form of a JSON schema."""
    s += system(instructions)
    s += user(document)
    s += assistant(gen("record", 160, temperature=0, json_schema=schema))


@function
def chat(s: ProgramState, turns: list[str], num_tokens: int) -> None:
    """A conversation of several turns in plain text; all of it is the prompt of each turn."""
    for number, turn in enumerate(turns):
        s += f"\nUser: {turn}\nAssistant:"
        s += written(f"answer{number}", num_tokens)


@function
def retrieve_and_answer(
    s: ProgramState, demonstrations: list[str], question: str, passages: list[list[str]]
) -> None:
    """DSPy's multi-hop pipeline: a search query, passages, another query, an answer.

    Each stage has a prompt of its own: its demonstrations, what was found so far, the question.
    """
    found = ""
    for hop, hits in enumerate(passages):
        stage = s.copy()
        stage += demonstrations[0] + f"{found}\nQuestion: {question}\nSearch query:"
        stage += written("query", 12)
        found += "".join(f"\nPassage: {one}" for one in hits)
        s.set_var(f"query{hop}", stage["query"])
    stage = s.copy()
    stage += demonstrations[1] + f"{found}\nQuestion: {question}\nReasoning:"
    stage += written("reasoning", 32)
    stage += "\nAnswer:"
    stage += written("answer", 6)
    s.set_var("answer", stage["answer"])


def _digit(text: str) -> int:
    return next((int(one) for one in text if one.isdigit()), 0)
