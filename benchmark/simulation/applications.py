"""The applications whose prefixes the SGLang paper shares, and a forest of popular prefixes.

Sizes are round numbers in the range of the paper's benchmarks, not copies of them.
Source of the kinds: Zheng et al., 2024, section 6.
"""

from __future__ import annotations

from collections.abc import Callable

from .trace import OutputOf, Segment
from .workloads import Material, Program, Workload


class FewShot:
    """Questions below one of 64 sets of worked examples; short answers."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._instructions = material.text(120)
        self._sets = [material.text(material.length(900, 0.4, 300, 3000)) for _ in range(64)]

    def write(self, program: Program) -> None:
        """One question."""
        m = self._material
        question = m.text(m.length(60, 0.5, 10, 300))
        examples = self._sets[m.zipf(len(self._sets))]
        program.add((self._instructions, examples, question), m.length(40, 0.9, 1, 400))


class MultiTurnChat:
    """Chats of 2 to 10 turns; the user thinks between them, the whole history is sent again."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._systems = [material.text(material.length(250, 0.6, 40, 1500)) for _ in range(16)]

    def write(self, program: Program) -> None:
        """One chat."""
        m = self._material
        prompt: tuple[Segment, ...] = (self._systems[m.zipf(16)],)
        after: tuple[str, ...] = ()
        for turn in range(int(m.rng.integers(2, 11))):
            prompt = (*prompt, m.text(m.length(80, 0.9, 5, 1500)))
            think = float(m.rng.exponential(8.0)) if turn else 0.0
            name = program.add(prompt, m.length(220, 0.7, 5, 1500), after, think)
            prompt, after = (*prompt, OutputOf(name)), (name,)


class TreeOfThought:
    """Three levels of search: each kept state proposes four steps, each is judged, two are kept."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._instructions = material.text(600)
        self._judge = material.text(90)

    def write(self, program: Program) -> None:
        """One search, and the answer from its best state."""
        m = self._material
        root: tuple[Segment, ...] = (self._instructions, m.text(m.length(150, 0.4, 40, 500)))
        states, after = [root], tuple[str, ...]()
        for _ in range(3):
            grown, judged = [], []
            for state in states:
                for _ in range(4):
                    step = program.add((*state, m.text(8)), m.length(90, 0.4, 20, 300), after)
                    thought = (*program.requests[-1].prompt, OutputOf(step))
                    judged.append(program.add((*thought, self._judge), 4, (step,)))
                    grown.append(thought)
            kept = m.rng.choice(len(grown), 2, replace=False)
            states, after = [grown[place] for place in kept], tuple(judged)
        program.add((*states[0], m.text(20)), m.length(150, 0.4, 20, 500), after)


class Agents:
    """Loops of model and tools below one of 12 long system prompts with tool descriptions."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._systems = [material.text(material.length(1800, 0.4, 600, 5000)) for _ in range(12)]

    def write(self, program: Program) -> None:
        """One task of 3 to 12 calls."""
        m = self._material
        task = m.text(m.length(120, 0.6, 20, 800))
        prompt: tuple[Segment, ...] = (self._systems[m.zipf(12)], task)
        after: tuple[str, ...] = ()
        for turn in range(int(m.rng.integers(3, 13))):
            tool_seconds = float(m.rng.exponential(1.5)) if turn else 0.0
            name = program.add(prompt, m.length(70, 0.6, 10, 500), after, tool_seconds)
            observation = m.text(m.length(250, 0.9, 10, 2000))
            prompt, after = (*prompt, OutputOf(name), observation), (name,)


class SelfConsistency:
    """Sixteen samples of one question below shared examples, asked at once."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._sets = [material.text(material.length(700, 0.3, 300, 2000)) for _ in range(8)]

    def write(self, program: Program) -> None:
        """One question."""
        m = self._material
        prompt = (self._sets[m.zipf(8)], m.text(m.length(90, 0.5, 20, 400)))
        for _ in range(16):
            program.add(prompt, m.length(160, 0.5, 20, 800))


class ZipfForest:
    """Single requests below 64 popular system prompts with 32 popular documents each."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._systems = [material.text(material.length(200, 0.6, 20, 800)) for _ in range(64)]
        self._documents = [
            [material.text(material.length(400, 0.8, 20, 3000)) for _ in range(32)]
            for _ in range(64)
        ]

    def write(self, program: Program) -> None:
        """One request."""
        m = self._material
        system = m.zipf(64)
        document = self._documents[system][m.zipf(32)]
        own = m.text(m.length(100, 0.8, 5, 1500))
        program.add((self._systems[system], document, own), m.length(150, 0.8, 2, 1500))


APPLICATIONS: dict[str, Callable[[Material], Workload]] = {
    "few-shot": FewShot,
    "multi-turn": MultiTurnChat,
    "tree-of-thought": TreeOfThought,
    "agents": Agents,
    "self-consistency": SelfConsistency,
    "zipf-forest": ZipfForest,
}
PAPER_APPLICATIONS = tuple(name for name in APPLICATIONS if name != "zipf-forest")
