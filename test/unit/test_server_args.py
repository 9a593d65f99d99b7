"""Server arguments: parsing, checks, and that every one of them is used."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from runtime.srt import server_args
from runtime.srt.errors import ConfigError
from runtime.srt.server_args import ServerArgs, add_arguments, from_command_line

SOURCE_FOLDER = Path(server_args.__file__).resolve().parent.parent
FIELDS = {one.name: one for one in dataclasses.fields(ServerArgs)}

# Properties of ServerArgs, and the fields that reading one of them uses.
PROPERTIES_THAT_READ = {
    "tenants": ["tenants_file"],
    "model_name": ("served_model_name", "model_path"),
    "model_overrides": ("json_model_override_args",),
    "preferred_sampling": ("preferred_sampling_params",),
}

BAD_VALUES = [
    ({"dtype": "int3"}, "--dtype is 'int3'; choose from auto, bfloat16, float16, float32"),
    ({"port": 70000}, "--port is 70000; it must be from 0 to 65535"),
    ({"port": "http"}, "--port is 'http'; it must be of type int"),
    ({"port": True}, "--port is True; it must be of type int"),
    ({"mem_fraction_static": 1.5}, "--mem-fraction-static is 1.5; it must be between 0 and 1"),
    ({"mem_fraction_static": math.inf}, "--mem-fraction-static is inf; it must be between 0 and 1"),
    ({"max_total_tokens": 0}, "--max-total-tokens is 0; it must be at least 1"),
    ({"page_size": 0}, "--page-size is 0; it must be at least 1"),
    ({"max_running_requests": -1}, "--max-running-requests is -1; it must be at least 1"),
    ({"max_queued_requests": -1}, "--max-queued-requests is -1; it must be at least 0"),
    ({"context_length": 1}, "--context-length is 1; it must be at least 16"),
    ({"context_length": 2**40}, "--context-length is 1099511627776; it must be from 16 to 2147483"),
    ({"max_running_requests": 10**6}, "--max-running-requests is 1000000; it must be from 1 to 65"),
    ({"threads": 0}, "--threads is 0; it must be at least 1"),
    ({"threads": 100_000}, "--threads is 100000; it must be from 1 to 256"),
    ({"random_seed": 2**64}, "--random-seed is 18446744073709551616; it must be from"),
    ({"max_total_tokens": 10**5000}, "--max-total-tokens is too large; it must be from 1 to"),
    ({"served_model_name": "a\udcff"}, "--served-model-name is 'a\\udcff'; it must be valid UTF-8"),
    ({"host": "a\0b"}, "--host is 'a\\x00b'; it must be valid UTF-8 without NUL"),
    ({"stream_interval": 0}, "--stream-interval is 0; it must be at least 1"),
    ({"drain_timeout_seconds": -1.0}, "--drain-timeout-seconds is -1.0; it must be at least 0"),
    ({"drain_timeout_seconds": math.nan}, "--drain-timeout-seconds is nan; it must be from 0 to"),
    ({"chunked_prefill_size": 0}, "--chunked-prefill-size is 0"),
    ({"chunked_prefill_size": 100, "page_size": 16}, "multiple of --page-size 16"),
    ({"schedule_conservativeness": 0.0}, "--schedule-conservativeness is 0.0; it must be above 0"),
    ({"quantization": "int3"}, "--quantization is 'int3'; choose from none, gguf, w8a8, w8a16"),
    (
        {"quantization": "gguf", "dtype": "float32"},
        "--quantization is gguf, which computes in bfloat16, and --dtype is float32",
    ),
    (
        {"quantization": "w8a8", "attention_backend": "torch_reference"},
        "--quantization is w8a8, which only cpu_native computes, and --attention-backend is",
    ),
    ({"watchdog_timeout": 0.0}, "--watchdog-timeout is 0.0; it must be above 0"),
    ({"json_model_override_args": "[" * 100_000}, "--json-model-override-args is not JSON"),
    ({"json_model_override_args": "{"}, "--json-model-override-args is not JSON"),
    ({"json_model_override_args": "[]"}, "--json-model-override-args must be a JSON object"),
    ({"preferred_sampling_params": "3"}, "--preferred-sampling-params must be a JSON object"),
    ({"chat_template": "no/such/file"}, "--chat-template names 'no/such/file'"),
    ({"api_key": ""}, "must not be empty"),
]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_field_can_be_set_on_the_command_line(name: str, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        '{"tenants": [{"name": "a", "api_key": "k"}]}'
    )  # a template as well as a tenants file
    value = _another_value(name, template)
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        argv = [option if value else option.replace("--", "--no-", 1)]
    else:
        argv = [option, str(value)]

    parsed = from_command_line(argv)

    assert getattr(parsed, name) == value
    others = {k: v for k, v in dataclasses.asdict(parsed).items() if k != name}
    assert others == {k: v for k, v in dataclasses.asdict(ServerArgs()).items() if k != name}


def test_no_arguments_give_the_defaults_of_the_class() -> None:
    assert from_command_line([]) == ServerArgs()


@pytest.mark.parametrize(("fields", "message"), BAD_VALUES)
def test_a_bad_value_is_refused_with_flag_value_and_limit(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        ServerArgs(**fields)

    assert message in raised.value.message


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "name", sorted(name for name, one in FIELDS.items() if str(one.type).startswith("float"))
)
def test_a_number_that_is_not_finite_is_told_as_it_is(name: str, value: str) -> None:
    option = "--" + name.replace("_", "-")

    with pytest.raises(ConfigError, match=f"{option} is {float(value)}; it must be "):
        ServerArgs(**{name: float(value)})


@pytest.mark.parametrize(
    "name", sorted(name for name, one in FIELDS.items() if str(one.type).startswith("int"))
)
@pytest.mark.parametrize("value", [-(10**30), 10**30])
def test_every_count_has_limits(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-") + " is"):
        ServerArgs(**{name: value})


@pytest.mark.parametrize(
    ("command_line", "message"),
    [
        ("--port many", "argument --port: invalid int value: 'many'"),
        ("--device tpu", "--device is 'tpu'; choose from auto, cpu"),
        ("--page-size 0", "--page-size is 0; it must be at least 1"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_bad_command_line_ends_with_status_2_and_one_line_that_says_why(
    command_line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        from_command_line(shlex.split(command_line))

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_help_tells_meaning_and_default_of_every_flag() -> None:
    parser = argparse.ArgumentParser(prog="launch_server")
    add_arguments(parser)

    entries = parser.format_help().split("\n  --")[1:]

    told = {entry.split()[0].rstrip(",").replace("-", "_"): entry for entry in entries}
    assert set(told) >= set(FIELDS)
    assert [name for name in FIELDS if len(told[name].split()) < 5] == []
    # Once, and in words for a reader of the command line.
    assert [name for name in FIELDS if told[name].count("(default") != 1] == []
    words = " ".join(told["admin_api_key"].split())
    assert "(default: the value of --api-key)" in words
    assert "at most the model's" in " ".join(told["context_length"].split())


def test_keys_are_never_in_the_public_view() -> None:
    args = ServerArgs(api_key="first-secret", admin_api_key="second-secret")

    shown = args.public_dict()

    assert "secret" not in repr(shown)
    assert set(shown) == set(FIELDS) - {"api_key", "admin_api_key"}


def test_every_field_is_read_outside_its_own_module() -> None:
    read = _names_read_from_server_args()
    for name, sources in PROPERTIES_THAT_READ.items():
        if name in read:
            read |= set(sources)

    assert sorted(set(FIELDS) - read) == []


def _another_value(name: str, template: Path) -> Any:
    """A valid value of the field that is not its default."""
    one = FIELDS[name]
    special = {
        "chat_template": str(template),
        "tenants_file": str(template),
        "target_retraction_rate": 0.5,
        "pin_pool_share": 0.5,
        "overlap_depth": 1,
        "json_model_override_args": '{"rope_theta": 1.0}',
        "preferred_sampling_params": '{"temperature": 0.5}',
        "mem_fraction_static": 0.25,
        "page_size": 16,
    }
    if name in special:
        return special[name]
    if one.metadata["choices"]:
        return next(choice for choice in one.metadata["choices"] if choice != one.default)
    kind = str(one.type).split(" ")[0]
    if kind == "bool":
        return not one.default
    return {"int": 64, "float": 2.5, "str": "some-text"}[kind]


def _names_read_from_server_args() -> set[str]:
    """Every name in `args.name`, `self._server_args.name` and the like, outside server_args.py."""
    names: set[str] = set()
    for folder in ("srt", "runtime"):
        for path in sorted((SOURCE_FOLDER / folder).glob("**/*.py")):
            if path.name != "server_args.py":
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.Attribute) and _is_server_args(node.value):
                        names.add(node.attr)
    return names


def _is_server_args(owner: ast.expr) -> bool:
    if isinstance(owner, ast.Name):
        return owner.id.endswith("args")
    return isinstance(owner, ast.Attribute) and owner.attr.endswith("args")
