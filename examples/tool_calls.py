"""Tools that the model calls by its own format: it asks, the program runs a function, and tells it.

Start a server, then: python examples/tool_calls.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, tool_result, user


def multiply(x: int, y: int) -> int:
    """Multiply two numbers."""
    return x * y


@function
def agent(s: ProgramState, question: str, max_steps: int = 3) -> str:
    s += user(question)
    for step in range(max_steps):
        choice = "required" if step == 0 else "auto"  # a small model has to be told
        s += assistant(
            gen("step", tools=[multiply], tool_choice=choice, max_tokens=60, temperature=0)
        )
        calls = s.tool_calls("step")
        if not calls:
            break
        for call in calls:
            s += tool_result(call, call.run())
    return str(s["step"]).strip()


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = agent.run("What is 17 times 23?", backend=server)
    for message in state.messages():
        print(message["role"], message.get("tool_calls") or message["content"])
