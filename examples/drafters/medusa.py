"""Medusa: heads on the target's last state, each a token further; a published tree (Cai et al. 2024)."""

from __future__ import annotations

from family import Family

FAMILY = Family(train="medusa", tree="medusa_63")

if __name__ == "__main__":
    FAMILY.main(__file__)
