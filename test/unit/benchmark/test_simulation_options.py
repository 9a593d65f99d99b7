"""Each flag of the simulator: what it changes, seen in the figures that the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulation.command import _Progress, main
from simulation.trace_file import read_trace

SMALL = ("--workload", "few-shot", "--requests", "12", "--rate", "inf", "--model", "smollm2-135m")


class Command:
    """Runs the command; what it printed last on stderr is kept."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.stderr = ""

    def __call__(self, *flags: str, base: tuple[str, ...] = SMALL) -> dict[str, Any]:
        """Return the figures of a single run."""
        assert main([*base, "--quiet", "--json", *flags]) == 0
        printed = self._capsys.readouterr()
        self.stderr = printed.err
        (figures,) = json.loads(printed.out)
        return dict(figures)

    @property
    def pool_tokens(self) -> int:
        return int(self.stderr.split("pool of ")[1].split()[0])


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def virtual(figures: dict[str, Any]) -> dict[str, Any]:
    """Leave out what depends on this machine."""
    return {
        name: value
        for name, value in figures.items()
        if name not in ("wall_seconds", "step_wall_us", "step_cpu_us")
    }


def test_an_output_scale_makes_all_answers_longer_and_leaves_their_ends_as_they_were(
    simulate: Command,
) -> None:
    once, three_times = simulate(), simulate("--output-scale", "3")

    assert three_times["outcomes"] == once["outcomes"]
    tokens = "generated_tokens"
    assert three_times["counters"][tokens] == 3 * once["counters"][tokens]
    assert three_times["counters"]["prompt_tokens"] == once["counters"]["prompt_tokens"]


def test_scaled_answers_are_quoted_whole_by_later_prompts(simulate: Command) -> None:
    base = ("--workload", "multi-turn", "--requests", "8", "--delay-scale", "0")
    once = simulate(base=base)
    twice = simulate("--output-scale", "2", base=base)

    more_output = twice["counters"]["generated_tokens"] - once["counters"]["generated_tokens"]
    more_prompt = twice["counters"]["prompt_tokens"] - once["counters"]["prompt_tokens"]
    assert more_output == once["counters"]["generated_tokens"] > 0
    assert more_prompt > more_output  # each answer is in the prompts of all later turns


def test_answers_that_are_spelt_out_are_repeated(simulate: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"id": "a", "prompt": [[1, 20]], "output": [5, 6, 7], "max_tokens": 9},
        {"id": "b", "prompt": [[2, 20]], "output": 4, "max_tokens": 4, "ignore_eos": True},
    ]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    found = simulate("--output-scale", "2", base=("--trace", str(trace)))

    assert found["outcomes"] == {"stop": 1, "length": 1}
    assert found["counters"]["generated_tokens"] == 2 * 3 + 2 * 4


def test_an_output_scale_that_is_no_whole_number_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--output-scale", "1.5"])
    assert "--output-scale" in capsys.readouterr().err


def test_a_delay_scale_stretches_the_time_between_turns(simulate: Command) -> None:
    base = ("--workload", "multi-turn", "--requests", "8", "--rate", "inf")
    seconds = [
        simulate("--delay-scale", scale, base=base)["virtual_seconds"] for scale in ("0", "1", "3")
    ]

    assert seconds[0] < seconds[1] < seconds[2]


def test_a_rate_spreads_the_arrivals(simulate: Command) -> None:
    at_once = simulate()["virtual_seconds"]
    one_per_second = simulate("--rate", "1")["virtual_seconds"]

    assert at_once < 3 < one_per_second


def test_burstiness_seed_and_asking_change_the_trace_that_is_saved(
    simulate: Command, tmp_path: Path
) -> None:
    def saved(*flags: str) -> list[tuple[float, int, object]]:
        file = tmp_path / "trace.jsonl"
        simulate("--rate", "20", "--save-trace", str(file), *flags)
        requests = read_trace(file).requests
        return [(one.arrival, one.max_tokens, one.output) for one in requests]

    plain = saved()
    assert saved() == plain
    assert saved("--seed", "1") != plain
    bursts = saved("--burstiness", "4")
    assert [one[1:] for one in bursts] == [one[1:] for one in plain]
    assert [one[0] for one in bursts] != [one[0] for one in plain]
    exact = saved("--asking", "exact")
    assert all(limit == output for _, limit, output in exact)
    assert [one[0] for one in exact] == [one[0] for one in plain]


def test_a_saved_trace_gives_the_run_that_it_was_saved_from(
    simulate: Command, tmp_path: Path
) -> None:
    file = tmp_path / "few-shot.jsonl"
    first = simulate("--save-trace", str(file))
    again = simulate(base=("--trace", str(file), "--model", "smollm2-135m"))

    assert virtual(again) | {"labels": 0} == virtual(first) | {"labels": 0}


def test_only_one_workload_at_a_time_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workload", "agents,few-shot", "--save-trace", "trace.jsonl"])
    assert "--save-trace takes one workload" in capsys.readouterr().err


def test_faster_machines_and_smaller_models_take_less_time(
    simulate: Command, tmp_path: Path
) -> None:
    large = ("--model", "llama-3-8b")
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    file = tmp_path / "half.json"
    file.write_text(json.dumps(config), encoding="utf-8")

    h100 = simulate(*large)["virtual_seconds"]
    assert simulate(*large, "--device", "h200")["virtual_seconds"] < h100
    assert simulate(*large, "--devices", "2")["virtual_seconds"] < h100
    assert simulate("--model", str(file))["virtual_seconds"] < h100
    assert simulate("--model", "smollm2-135m")["virtual_seconds"] < h100


def test_calibrated_steps_take_the_time_that_was_measured(
    simulate: Command, tmp_path: Path
) -> None:
    file = tmp_path / "steps.json"
    samples = [[tokens, rows, 100, 7.0] for tokens in (0, 10, 200) for rows in (1, 5, 30)]
    file.write_text(json.dumps(samples), encoding="utf-8")

    found = simulate("--calibrate", str(file))

    assert "calibrated: " in simulate.stderr
    assert found["virtual_seconds"] == pytest.approx(7e-3 * found["steps"], rel=1e-6)


def test_the_size_of_the_pool_is_what_was_asked_for(simulate: Command) -> None:
    simulate("--pool-tokens", "5000")
    assert simulate.pool_tokens == 5000
    simulate("--pool-share", "1")
    working_set = simulate.pool_tokens
    simulate("--pool-share", "0.5")
    assert simulate.pool_tokens == working_set // 2
    sizes = []
    for share in ("0.4", "0.8"):
        simulate("--memory-share", share)
        sizes.append(simulate.pool_tokens)
    assert 1.9 < sizes[1] / sizes[0] < 2.2  # twice the memory, less the weights


def test_pages_are_found_whole(simulate: Command) -> None:
    found = simulate("--page-size", "64")

    assert found["counters"]["cached_prompt_tokens"] % 64 == 0
    assert 0 < found["hit_rate"] <= simulate()["hit_rate"]


def test_what_exceeds_the_context_length_is_refused(simulate: Command) -> None:
    assert "refused" not in simulate()["outcomes"]
    assert simulate("--context-length", "900")["outcomes"]["refused"] > 0


def test_a_queue_depth_feeds_the_queue_whatever_the_arrivals(simulate: Command) -> None:
    slow = ("--rate", "0.5", "--max-running-requests", "2")

    by_arrival, by_depth = simulate(*slow), simulate(*slow, "--queue-depth", "3")

    assert by_depth["labels"]["queue depth"] == "3"
    assert by_depth["virtual_seconds"] < by_arrival["virtual_seconds"] / 2


def test_fewer_running_requests_take_more_steps(simulate: Command) -> None:
    assert simulate("--max-running-requests", "1")["steps"] > 2 * simulate()["steps"]


def test_a_set_field_holds_in_all_runs_and_a_varied_one_makes_a_run_of_each_value(
    simulate: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--set", "chunk_tokens=16")["steps"] > 2 * simulate()["steps"]

    flags = ["--set", "chunk_tokens=16", "--vary", "ageing_stride=4,8", "--run", "one:policy=fcfs"]
    assert main([*SMALL, "--quiet", "--json", *flags, "--admission", "learnt,ratio"]) == 0
    runs = json.loads(capsys.readouterr().out)

    assert [list(one["labels"].values())[1:] for one in runs] == [
        [rule, stride, "one"] for rule in ("learnt", "ratio") for stride in ("4", "8")
    ]
    assert main(["--set", "chunk_token=16"]) == 2
    assert "chunk_token=16" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--full-launch", "--no-stream"])
def test_a_flag_that_saves_or_spends_wall_time_changes_no_figure(
    simulate: Command, flag: str
) -> None:
    assert virtual(simulate(flag)) == virtual(simulate())


@pytest.mark.parametrize("flag", ["--slo-ttft", "--slo-tpot", "--slo-gap"])
def test_goodput_falls_with_each_limit(simulate: Command, flag: str) -> None:
    lenient = ("--slo-ttft", "1000", "--slo-tpot", "1000", "--slo-gap", "1000")

    assert simulate(*lenient)["slo_share"] == 1.0
    assert simulate(*lenient, flag, "1e-9")["slo_share"] < 1.0


def test_progress_is_told_unless_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Progress, "INTERVAL_SECONDS", 0.0)

    main([*SMALL])
    loud = capsys.readouterr().err
    main([*SMALL, "--quiet"])
    quiet = capsys.readouterr().err

    assert "of 12 requests after" in loud
    assert "requests after" not in quiet


@pytest.mark.parametrize(
    "flags",
    [
        ("--rate", "0"),
        ("--burstiness", "0"),
        ("--delay-scale", "-1"),
        ("--requests", "0"),
        ("--pool-tokens", "0"),
        ("--page-size", "0"),
        ("--devices", "0"),
        ("--asking", "nothing"),
        ("--device", "abacus"),
        ("--workload", "chess"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_flag(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*flags])
    assert flags[0] in capsys.readouterr().err
