"""Text as it comes.

Start a server, then: python examples/streaming.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, user


@function
def ask(s: ProgramState, question: str) -> None:
    s += user(question)
    s += assistant(gen("answer", max_tokens=60, temperature=0))


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = ask.run("Why is the sky blue?", backend=server, stream=True)
        for piece in state.text_iter("answer"):
            print(piece, end="", flush=True)
        print(f"\n({state.get_meta_info('answer')['completion_tokens']} tokens)")
