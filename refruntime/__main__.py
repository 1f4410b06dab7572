"""``python -m refruntime``: the same as the command ``refruntime``."""

from __future__ import annotations

import sys

from refruntime.cli import main

sys.exit(main())
