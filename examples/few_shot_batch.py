"""The same examples before many questions: a batch computes them once.

Start a server, then: python examples/few_shot_batch.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, function, gen

EXAMPLES = """\
Word: hot. Opposite: cold.
Word: big. Opposite: small.
Word: early. Opposite: late.
Word: open. Opposite: closed.
"""


@function
def opposite(s: ProgramState, word: str) -> None:
    s += EXAMPLES + f"Word: {word}. Opposite:"
    s += gen("opposite", max_tokens=6, stop=".", temperature=0)


if __name__ == "__main__":
    words = ["light", "fast", "old", "happy", "full", "hard"]
    with RuntimeEndpoint(sys.argv[1]) as server:
        items = [{"word": word} for word in words]
        states = opposite.run_batch(items, backend=server, progress_bar=True)
    for word, state in zip(words, states, strict=True):
        print(f"{word}:{state['opposite']}")
