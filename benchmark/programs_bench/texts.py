"""Made-up but plausible English for the programs: facts, questions, passages, letters.

Everything follows from the generator that is passed in, so that a round can be repeated, and two
rounds share no text.
"""

from __future__ import annotations

from random import Random

_PLACES = (
    "Aldermoor Brackwater Calderfield Dunmere Eastholm Farrowby Glenhaven Harrowgate Ilverton "
    "Kestrel-on-Sea Langmere Marrowdale Northwick Oakhampton Penhallow Quarrington Redcliffe "
    "Silverbrook Thornbury Upper-Wexley"
).split()
_PEOPLE = (
    "Ada Brandt,Bruno Keller,Clara Whitfield,Daniel Osei,Edith Marlow,Felix Navarro,"
    "Greta Lindqvist,Hugo Tanaka,Iris Coleman,Jonas Petrov,Kamala Singh,Leon Fischer,"
    "Maya Okafor,Nils Berg,"
    "Olga Ramirez,Peter Hollis"
).split(",")
_THINGS = (
    "bridge library harbour observatory railway market lighthouse mill canal museum theatre garden "
    "school reservoir factory hospital tower archive"
).split()
_DEEDS = (
    "was designed,was rebuilt,was closed for repairs,was paid for,was measured,was photographed,"
    "was described in a long report,was opened to the public,was moved stone by stone,was painted"
).split(",")
_REASONS = (
    "because the old one had become unsafe,after two dry summers,although the council had voted "
    "against it,while the war was still going on,so that goods could be brought in from the coast,"
    "in spite of the heavy rain,since nobody else was willing to do it,to mark the founding of the "
    "town,before the first trains ran,when the price of timber fell"
).split(",")
_TOPICS = "geography,economic history,botany,physics of heat,music theory,civil law".split(",")
_ACTIONS = (
    "picks up the brush and starts to clean the edge,waits until the water boils and adds the salt,"
    "turns the wheel slowly to the left,puts the ladder against the wall and climbs up,"
    "folds the paper twice and cuts along the line,holds the board with both hands and pushes off,"
    "looks into the camera and explains the next step,pours the mixture into a flat pan"
).split(",")


def sentence(rng: Random) -> str:
    """One sentence of about 28 tokens."""
    return (
        f"In {rng.randrange(1790, 1990)} the {rng.choice(_THINGS)} of {rng.choice(_PLACES)} "
        f"{rng.choice(_DEEDS)} by {rng.choice(_PEOPLE)}, {rng.choice(_REASONS)}."
    )


def passage(rng: Random, num_sentences: int) -> str:
    """A paragraph."""
    return " ".join(sentence(rng) for _ in range(num_sentences))


def topic(rng: Random) -> str:
    """What a set of questions is about."""
    return rng.choice(_TOPICS)


def person(rng: Random) -> str:
    """A first and a last name."""
    return rng.choice(_PEOPLE)


def place(rng: Random) -> str:
    """A town."""
    return rng.choice(_PLACES)


def question(rng: Random) -> str:
    """A question of one line."""
    return (
        f"Who was responsible for the {rng.choice(_THINGS)} of {rng.choice(_PLACES)} in "
        f"{rng.randrange(1790, 1990)}, and why was it needed {rng.choice(_REASONS)}?"
    )


def exam_question(rng: Random) -> str:
    """A question with four lettered answers, as in MMLU."""
    letters = "ABCD"
    answers = rng.sample(_PEOPLE, 4)
    lines = [f"{letter}. {answer}" for letter, answer in zip(letters, answers, strict=True)]
    return f"{passage(rng, 2)} {question(rng)}\n" + "\n".join(lines)


def scene(rng: Random) -> str:
    """The beginning of a description whose end is to be chosen, as in HellaSwag."""
    return (
        f"{sentence(rng)} {rng.choice(_PEOPLE)} is standing near the {rng.choice(_THINGS)} in "
        f"{rng.choice(_PLACES)} and {rng.choice(_ACTIONS)}. Then {rng.choice(['he', 'she'])}"
    )


def endings(rng: Random, count: int) -> list[str]:
    """Different ways to go on after a scene."""
    return [f" {one}." for one in rng.sample(_ACTIONS, count)]
