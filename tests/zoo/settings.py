"""What single families need beyond small sizes: settings before they are made small, and after."""

from __future__ import annotations

from typing import Any

BEFORE: dict[str, dict[str, Any]] = {}

AFTER: dict[str, dict[str, Any]] = {}
