"""What `import dspark` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import dspark
from dspark import InvalidRequest, load_target
from dspark.devices import require


def test_every_public_name_is_there() -> None:
    for name in dspark.__all__:
        assert getattr(dspark, name).__name__ == name or name == "FinishReason"
    assert set(dspark.__all__) <= set(dir(dspark))
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        dspark.Motor  # noqa: B018


def test_the_command_line_comes_without_torch_until_it_is_needed() -> None:
    program = "import sys, dspark.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_gpu_that_is_not_there_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(InvalidRequest, match="is for CPUs only: choose cpu, or install"):
        require(torch.device("cuda"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for count, advice in ((0, "choose cpu"), (1, "one below that number")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(InvalidRequest, match=f"finds {count} NVIDIA GPUs here.*{advice}"):
            require(torch.device("cuda:1"))
    require(torch.device("cuda"))
    require(torch.device("cpu"))


def test_a_target_for_no_such_device_is_refused_before_anything_loads() -> None:
    with pytest.raises(InvalidRequest, match="device is 'gpu'"):
        load_target("nowhere", device="gpu")
