"""Building the engine: cached by what it is made of, and clear about a missing compiler."""

import ctypes
from pathlib import Path

import pytest

from runtime.kernels.cpu import build


def test_a_built_library_is_found_again_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.library_path()
    assert path.exists()

    def fail(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "_build", fail)
    assert build.library_path() == path


def test_no_compiler_is_said_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.NoCompiler, match=r"install g\+\+"):
        build.library_path()


def test_a_refused_source_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.cpp").write_text("int f( {\n")
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(build.BuildFailed, match=r"broken\.cpp"):
        build.library_path()
    assert not list((tmp_path / "cache" / "radix-runtime").iterdir())


def test_a_compilation_is_announced_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "small.cpp").write_text("int f() { return 1; }\n")
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.set_level("INFO")

    build.library_path()
    build.library_path()

    first, second = caplog.messages
    assert first.startswith("compiling the CPU engine")
    assert second.startswith("compiled the CPU engine in ")


@pytest.mark.parametrize("damage", ["empty", "cut", "changed"])
def test_a_damaged_library_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    (tmp_path / "small.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setattr(build, "_FLAGS", ["-fPIC"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = build.library_path()
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    path.write_bytes({"empty": b"", "cut": whole[:5000], "changed": bytes(changed)}[damage])

    again = build.library_path()

    assert again == path
    assert ctypes.CDLL(str(again)).answer() == 42


@pytest.mark.parametrize("is_file", [True, False])
def test_a_cache_that_cannot_be_is_told_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    root = tmp_path / "file" if is_file else Path("/proc/nothing")
    if is_file:
        root.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))

    with pytest.raises(build.BuildFailed, match="set XDG_CACHE_HOME"):
        build.library_path()
