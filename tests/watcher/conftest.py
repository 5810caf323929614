"""What several tests of watching need."""

import pytest
import torch


@pytest.fixture
def uncompiled_flex(monkeypatch):
    """Run flex attention without the compiler behind it, which takes most of a minute."""
    from transformers import masking_utils
    from transformers.integrations import flex_attention

    torch.compiler.reset()  # otherwise it knows the lengths of other tests
    build = masking_utils.create_block_mask
    monkeypatch.setattr(
        masking_utils, "create_block_mask", lambda *a, **k: build(*a, **{**k, "_compile": False})
    )
    monkeypatch.setattr(flex_attention, "is_torchdynamo_compiling", lambda: True)
