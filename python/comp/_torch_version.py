# SPDX-License-Identifier: Apache-2.0
"""Refuses a torch that the compiled part does not fit. The dynamic loader would do it later, and only name symbols."""

from __future__ import annotations

import torch

from comp._built_for import TORCH


def sentence(why: str) -> str:
    return (
        f"comp was compiled against torch {TORCH} and does not fit torch {torch.__version__} ({why}): install comp's wheel "
        "for that torch, or compile it here with pip install --no-build-isolation"
    )


def require() -> None:
    """Raises: ImportError for another release of torch."""
    if TORCH.split(".")[:2] != str(torch.__version__).split(".")[:2]:
        raise ImportError(sentence("each release has libraries of its own"))
