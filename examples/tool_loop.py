"""A loop of thought, tool and observation (ReAct) with a real tool: a calculator.

Start a server, then: python examples/tool_loop.py http://127.0.0.1:30000
"""

import operator
import sys

from runtime import ProgramState, RuntimeEndpoint, function, gen, select

TOOLS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SHOTS = """\
Question: What is 12 plus 30?
Action: calculate 12+30
Observation: 42
Answer: 42
Question: What is 9 times 8?
Action: calculate 9*8
Observation: 72
Answer: 72
"""


@function
def agent(s: ProgramState, question: str, max_steps: int = 3) -> str:
    s += SHOTS + f"Question: {question}\n"
    for _ in range(max_steps):
        s += select("step", ["Action: calculate ", "Answer:"])
        if s["step"] == "Answer:":
            break
        s += gen("call", regex=r"[0-9]{1,4}[-+*][0-9]{1,4}", temperature=0)
        sign = next(one for one in TOOLS if one in s["call"])
        left, right = s["call"].split(sign)
        s += f"\nObservation: {TOOLS[sign](int(left), int(right))}\n"
    else:
        s += "Answer:"
    s += gen("answer", max_tokens=8, stop="\n", temperature=0)
    return str(s["answer"]).strip()


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = agent.run("What is 17 times 23?", backend=server)
    print(state.text())
