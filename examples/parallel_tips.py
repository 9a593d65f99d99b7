"""Fork: the points of a list are worked out side by side, from one shared beginning.

Start a server, then: python examples/parallel_tips.py http://127.0.0.1:30000
"""

import sys

from runtime import ProgramState, RuntimeEndpoint, function, gen

TOPICS = ["sleep", "food", "exercise"]


@function
def advice(s: ProgramState) -> None:
    s += "Some advice for a healthy life, one sentence for each topic.\n"
    s += "About water: You should drink eight glasses of water every day.\n"
    branches = s.fork(len(TOPICS))
    branches += [f"About {topic}: You should" for topic in TOPICS]
    branches += gen("tip", max_tokens=30, stop="\n", temperature=0)
    branches.join()  # each new variable is a list now, by branch
    s += "".join(
        f"About {topic}: You should{tip}\n" for topic, tip in zip(TOPICS, s["tip"], strict=True)
    )
    s += "In short: You should"
    s += gen("summary", max_tokens=30, stop="\n", temperature=0)


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        print(advice.run(backend=server).text())
