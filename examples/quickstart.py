"""The first program: text, an output that is kept, and a choice.

Start a server, then: python examples/quickstart.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, function, gen, select, set_default_backend


@function
def capital(s: ProgramState, country: str) -> None:
    s += f"The capital of {country} is"
    s += gen("city", max_tokens=8, stop=[".", ",", "\n"], temperature=0)
    s += f".\nQuestion: is {country} in Europe?\nAnswer:"
    s += select("in_europe", choices=[" yes", " no"])


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        set_default_backend(server)
        state = capital.run("France")
        print("city:", state["city"].strip())
        print("in Europe:", state["in_europe"].strip())
        print("scores:", state.get_meta_info("in_europe")["normalized_prompt_logprobs"])
