"""A plugin of pytest: CuPy without its pool, so that compute-sanitizer sees where each array ends."""

from __future__ import annotations

import cupy

cupy.cuda.set_allocator(None)
