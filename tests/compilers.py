"""Whether this machine has a C compiler, without which the fused kernel is not built."""

import shutil

import pytest

from softvq.functional.backends.native_build import COMPILERS

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="no C compiler is installed"
)
