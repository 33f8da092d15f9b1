"""What a transformers model is called with where nobody says it; what is not known is asked for."""

from __future__ import annotations

import pytest

import autotp
from autotp.huggingface.models import example_inputs, resolve


@pytest.mark.parametrize(("kind", "size"), [("vit", (224, 224)), ("sam", None), ("regnet", None)])
def test_an_image_is_of_the_size_that_the_configuration_says(kind: str, size: tuple[int, int] | None) -> None:
    model = resolve(kind)
    if size is not None:
        assert example_inputs(model, 2, 8)["pixel_values"].shape == (2, 3, *size)
        return
    with pytest.raises(autotp.AutotpError, match="no example inputs are known for the input"):
        example_inputs(model, 2, 8)
