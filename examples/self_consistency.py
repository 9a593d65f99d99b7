"""Several samples of one answer, and a vote among them.

Start a server, then: python examples/self_consistency.py http://127.0.0.1:30000
"""

import sys
from collections import Counter

from runtime import ProgramState, RuntimeEndpoint, function, gen, gen_int

SHOT = """\
Question: Ann has 2 pens and buys 1 more. How many does she have?
Thought: She starts with 2 pens. 2 + 1 = 3.
The answer is the number 3
"""


@function
def solve(s: ProgramState, question: str, num_samples: int) -> int:
    s += SHOT + f"Question: {question}\nThought:"
    branches = s.fork(num_samples)
    for number, branch in enumerate(branches):
        branch += gen("thought", max_tokens=40, stop="\n", temperature=0.8, seed=number)
        branch += "\nThe answer is the number "
        branch += gen_int("answer", max_tokens=8, temperature=0)
    branches.join()
    return Counter(s["answer"]).most_common(1)[0][0]


if __name__ == "__main__":
    question = "Tom has 3 apples and buys 4 more. How many does he have?"
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = solve.run(question, num_samples=5, backend=server)
    print("answers:", state["answer"])
    print("vote:", state.ret_value)
