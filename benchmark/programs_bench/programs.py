"""The programs, after those of the SGLang paper (Zheng et al., 2024, section 6), smaller.

What the model writes has a fixed length unless a grammar says its form, so that every contestant
does the same work whatever the model makes of it; what a tool or a user says comes from the
arguments, as in a recorded trace.
"""

from __future__ import annotations

from typing import Any

from runtime import ProgramState, assistant, function, gen, select, system, user

_FIELDS = (  # name, form, most tokens
    ("name", r'"[\w ]{1,24}"', 8),
    ("country", r'"[\w ]{1,24}"', 8),
    ("latitude", r"-?[0-9]{1,2}\.[0-9]{1,2}", 8),
    ("population", r"[0-9]{1,8}", 8),
    ("landmarks", r'\["[\w ]{1,16}"(, "[\w ]{1,16}"){2}\]', 24),
)


CODE = "[A-Z]{2}-[0-9]{3}"  # nothing that a model writes by itself


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
def generative_agent(
    s: ProgramState, persona: str, events: list[str], places: list[str], examples: list[str]
) -> None:
    """A character's day, replayed: five questions at each event, each a prompt of its own.

    How much the event moves it, the event as a triple, as a symbol, the place to go to, and the
    thing there. examples stand in the prompts of the triple, the place and the thing.
    """
    for number, (event, place) in enumerate(zip(events, places, strict=True)):
        asked = {
            "rate": (
                f"A character: {persona}\nFrom 1 to 10, how moving is this? {event}\nRate:",
                2,
            ),
            "triple": (f"{examples[0]}\nSentence: {event}\nTriple: (", 20),
            "symbol": (f"Write as one or two symbols what happens: {event}\nSymbols:", 6),
            "place": (f"{examples[1]}\n{place}\nWhere to go for this? {event}\nPlace: {{", 10),
            "thing": (f"{examples[2]}\n{place}\nWhat is used there?\nThing: {{", 5),
        }
        for name, (prompt, num_tokens) in asked.items():
            call = s.copy()
            call += prompt
            call += written("reply", num_tokens)
            s.set_var(f"{name}{number}", call["reply"])


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
def fill_json(s: ProgramState, page: str) -> None:
    """Facts from a long page, field by field, each held to its own regular expression."""
    s += f"A page about a town begins.\n{page}\nThe page ends. What it says, as JSON:\n{{\n"
    for name, regex, max_tokens in _FIELDS:
        s += f'  "{name}": '
        s += gen(name, max_tokens, temperature=0, regex=regex)
        s += ",\n"
    s += "}\n"


@function
def extract_json(s: ProgramState, instructions: str, document: str, schema: dict[str, Any]) -> None:
    """A record from a short text in one call, in the form of a JSON schema."""
    s += system(instructions)
    s += user(document)
    s += assistant(gen("record", 160, temperature=0, json_schema=schema))


@function
def chat(s: ProgramState, turns: list[str], lengths: list[int]) -> None:
    """A conversation of several turns in plain text; all of it is the prompt of each turn."""
    for number, (turn, num_tokens) in enumerate(zip(turns, lengths, strict=True)):
        s += f"\nUser: {turn}\nAssistant:"
        s += written(f"answer{number}", num_tokens)


@function
def answer_from_passages(
    s: ProgramState, demonstrations: str, passages: list[str], question: str
) -> None:
    """DSPy's example pipeline after its compilation: demonstrations, passages, an answer."""
    s += demonstrations + _context(passages)
    s += f"\nQuestion: {question}\nReasoning: Let's think step by step in order to"
    s += written("answer", 48)


@function
def hop_and_answer(
    s: ProgramState, demonstrations: list[str], question: str, passages: list[list[str]]
) -> None:
    """Two hops: a search query, passages, another query, an answer.

    Each stage has a prompt of its own: its demonstrations, what was found so far, the question.
    """
    found = ""
    for hop, hits in enumerate(passages):
        stage = s.copy()
        stage += demonstrations[0] + f"{found}\nQuestion: {question}\nSearch query:"
        stage += written("query", 12)
        found += _context(hits)
        s.set_var(f"query{hop}", stage["query"])
    stage = s.copy()
    stage += demonstrations[1] + f"{found}\nQuestion: {question}\nReasoning:"
    stage += written("reasoning", 32)
    stage += "\nAnswer:"
    stage += written("answer", 6)
    s.set_var("answer", stage["answer"])


@function
def write_code(s: ProgramState) -> None:
    """Tells whether a server holds to a regular expression."""
    s += "The weather was fine, and"
    s += gen("code", 16, temperature=0, regex=CODE)


def _context(passages: list[str]) -> str:
    return "".join(f"\nPassage: {one}" for one in passages)


def _digit(text: str) -> int:
    return next((int(one) for one in text if one.isdigit()), 0)
