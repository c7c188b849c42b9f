"""What this processor can do."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping

import llvmlite.binding

FEATURES = dict(llvmlite.binding.get_host_cpu_features())
"""By LLVM's names."""

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def may_use_matrix_unit(features: Mapping[str, bool]) -> bool:
    """Whether there is one (Intel's AMX), and the kernel lets this process use it.

    It has to be asked once in each process; see `arch_prctl(ARCH_REQ_XCOMP_PERM)` in the Linux
    kernel's documentation.
    """
    if not (features.get("amx-tile") and features.get("amx-int8")):
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return int(refused) == 0


MATRIX_UNIT = may_use_matrix_unit(FEATURES)
