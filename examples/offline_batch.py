"""A batch without a server: the engine runs inside this program.

python examples/offline_batch.py
"""

from runtime import Engine, ProgramState, assistant, function, gen, user


@function
def translate(s: ProgramState, word: str) -> None:
    s += user(f"Translate the English word '{word}' to French. Answer with one word.")
    s += assistant(gen("french", max_tokens=8, temperature=0))


if __name__ == "__main__":
    words = ["house", "water", "bread"]
    with Engine(model="smollm2-135m-instruct", max_total_tokens=8192) as engine:
        for word, state in zip(
            words, translate.run_batch([(one,) for one in words], backend=engine), strict=True
        ):
            print(f"{word}: {state['french']}")
