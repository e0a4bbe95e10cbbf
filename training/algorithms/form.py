"""Form: as published, or repaired so that its privacy can be proven."""

from __future__ import annotations

import enum


class Form(enum.StrEnum):
    """Which of the two forms of an algorithm is meant."""

    REPAIRED = "repaired"
    PUBLISHED = "published"
