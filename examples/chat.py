"""A conversation of several turns; the model's own chat template writes the messages.

Start a server, then: python examples/chat.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, system, user


@function
def interview(s: ProgramState, questions: list[str]) -> None:
    s += system("You are a patient teacher. You answer in one sentence.")
    for number, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer{number}", max_tokens=40, temperature=0))


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = interview.run(["What is a prime number?", "Give an example."], backend=server)
        for message in state.messages():
            print(f"{message['role']}: {message['content']}")
