"""The device and precision of a computation, and where compiled code is cached."""

import os
import stat

import pytest
import torch

from heed.errors import HeedError
from heed.runtime.device import (
    cache_folder,
    choose_machine,
    kernel_flags,
    matrix_product_rate,
    micro_batch_tokens,
    n_threads,
    native_kernels,
    processor,
)


@pytest.fixture(autouse=True)
def no_choice_of_the_environment(monkeypatch):
    for name in ("HEED_DEVICE", "HEED_KERNELS", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_precision_that_is_asked_for_is_taken():
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        machine = choose_machine(name, device="cpu")
        assert (machine.device, machine.dtype, machine.precision) == (torch.device("cpu"), dtype, name)
        assert str(machine) == f"cpu, {name} (as set)"


def test_automatic_precision_names_the_instructions_that_decide_it(monkeypatch):
    monkeypatch.delenv("HEED_ISA", raising=False)
    machine = choose_machine("auto", device="cpu")
    has_bf16 = [name for name in ("amx_bf16", "avx512_bf16") if torch.cpu.get_capabilities().get(name)]
    assert machine.dtype == (torch.bfloat16 if has_bf16 else torch.float32)
    assert machine.why == (has_bf16[0] if has_bf16 else "neither amx_bf16 nor avx512_bf16")


def test_the_environment_chooses_the_device_unless_the_caller_does(monkeypatch):
    monkeypatch.setenv("HEED_DEVICE", "nonsense")
    assert choose_machine("fp32", device="cpu").device.type == "cpu"
    with pytest.raises(HeedError, match=r"^device nonsense: expected cpu, cuda, xpu"):
        choose_machine("fp32")
    monkeypatch.setenv("HEED_DEVICE", "cpu")
    assert choose_machine("fp32").device.type == "cpu"


@pytest.mark.parametrize("device", ["meta", "cpu:x", "", "cuda:99", "cuda:-1"])
def test_a_device_that_cannot_compute_is_refused_in_one_line(device, monkeypatch):
    monkeypatch.setenv("HEED_DEVICE", "meta")  # an empty name leaves the choice to the environment
    with pytest.raises(HeedError) as caught:
        choose_machine("fp32", device=device)
    assert str(caught.value).startswith(f"device {device or 'meta'}") and "\n" not in str(caught.value)


def test_torchruns_workers_take_a_gpu_each(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "99")
    with pytest.raises(HeedError, match=r"^device cuda:99 "):
        choose_machine("fp32", device="cuda")


@pytest.mark.parametrize(
    ("value", "kernels", "flags"),
    [
        (None, "fast", []),
        ("-march=haswell -g", "fast", ["-march=haswell", "-g"]),
        ("1", "forced", []),
        ("1 -march=haswell", "forced", ["-march=haswell"]),
        ("-I folder", "fast", ["-I", "folder"]),
        ("0", "none", []),
        ("sanitize", "sanitized", []),
    ],
)
def test_the_environment_chooses_the_kernels(monkeypatch, value, kernels, flags):
    if value is not None:
        monkeypatch.setenv("HEED_KERNELS", value)
    assert (native_kernels(), kernel_flags()) == (kernels, flags)


def test_a_wish_for_kernels_that_do_not_exist_is_refused(monkeypatch):
    for value in ("false", "1 more", "0 -g", "sanitize -g"):
        monkeypatch.setenv("HEED_KERNELS", value)
        with pytest.raises(HeedError, match=f"HEED_KERNELS={value}: expected 0, 1, sanitize"):
            native_kernels()


def test_the_cache_is_private_and_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = cache_folder()
    assert folder == tmp_path / "xdg" / "heed" and stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "heed"
    monkeypatch.chdir(tmp_path)
    for ignored in ("cache", "./cache", "~/cache", ""):  # as the specification says: not absolute
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache" / "heed" and not (tmp_path / "cache").exists()


def test_a_cache_that_others_can_write_is_passed_over_and_reported(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "heed").mkdir()
    (tmp_path / "heed").chmod(0o777)
    assert cache_folder() == tmp_path / "temporary" / f"heed-{os.geteuid()}"
    assert f"{tmp_path / 'heed'} belongs to another user or can be written by one" in caplog.text
    (tmp_path / "temporary" / f"heed-{os.geteuid()}").chmod(0o777)
    with pytest.raises(OSError, match=r"heed .*; .*heed-\d+ "):
        cache_folder()


def test_a_cache_that_is_a_link_is_not_followed(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for folder in ("temporary", "public"):
        (tmp_path / folder).mkdir(mode=0o755)
    for link in (tmp_path / "heed", tmp_path / "temporary" / f"heed-{os.geteuid()}"):
        link.symlink_to(tmp_path / "public")
    with pytest.raises(OSError, match="is a symbolic link; .*is a symbolic link"):
        cache_folder()
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o755
    assert f"{tmp_path / 'heed'} is a symbolic link, so it is not used." in caplog.text


def test_a_cpu_is_described_and_measured():
    machine = choose_machine("fp32", device="cpu")
    assert processor() and n_threads() == torch.get_num_threads()
    assert micro_batch_tokens(machine.device) == 4096
    assert matrix_product_rate(machine, seconds=0.0) > 1e8  # a hundredth of any core's
