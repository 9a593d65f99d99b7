"""Tree search: propose continuations, let the model judge them, go on with the best.

Start a server, then: python examples/tree_search.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, function, gen, select


def score(state: ProgramState) -> float:
    """How much likelier the model finds "good" than "bad" after the state's text."""
    judge = state.copy()
    judge += "\nIs this story good or bad? It is" + select("verdict", [" good", " bad"])
    good, bad = judge.get_meta_info("verdict")["normalized_prompt_logprobs"]
    return float(good - bad)


@function
def story(s: ProgramState, depth: int, width: int) -> str:
    s += "Once upon a time a fox met a crane."
    best = s
    for level in range(depth):
        branches = best.fork(width)
        for number, branch in enumerate(branches):
            seed = level * width + number
            branch += gen("next", max_tokens=20, stop=".", temperature=0.9, seed=seed) + "."
        best = max(branches, key=score)
    return best.text()


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        print(story.run(depth=2, width=3, backend=server).ret_value)
