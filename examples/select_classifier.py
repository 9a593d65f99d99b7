"""A classifier: all labels are scored in one call, and the scores are there to be seen.

Start a server, then: python examples/select_classifier.py http://127.0.0.1:30000
"""

import sys

from runtime import ChoicesMethod, ProgramState, RuntimeEndpoint, function, select

LABELS = [" positive", " negative"]


@function
def classify(s: ProgramState, review: str) -> None:
    s += 'Review: "A wonderful film, I loved it."\nSentiment: positive\n'
    s += 'Review: "Dull and far too long."\nSentiment: negative\n'
    s += f'Review: "{review}"\nSentiment:'
    s += select("label", LABELS, choices_method=ChoicesMethod.TOKEN_LENGTH_NORMALIZED)


if __name__ == "__main__":
    reviews = ["I laughed and cried, go and see it!", "I wish I had my money back."]
    with RuntimeEndpoint(sys.argv[1]) as server:
        for state in classify.run_batch([(one,) for one in reviews], backend=server):
            scores = state.get_meta_info("label")["normalized_prompt_logprobs"]
            print(state["label"].strip(), [round(one, 2) for one in scores])
