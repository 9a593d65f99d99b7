"""Building the engine: cached by what it is made of, and clear about a missing compiler."""

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
