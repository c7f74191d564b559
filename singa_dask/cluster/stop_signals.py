"""The signals that ask a run to stop, which its driver alone obeys: it has the workers save before they end.

Terminals (Ctrl-C, closing), `timeout` and batch systems send them to every process of a run.
"""

from __future__ import annotations

import signal

FOR_THE_DRIVER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
