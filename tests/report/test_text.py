"""Names and numbers as tables show them."""

import pytest

from autotp.report.text import byte_size, duration, fold


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], []),
        ([""], [""]),
        (["lm_head"], ["lm_head"]),
        (["layers.0"], ["layers.0"]),
        (["layers.0", "layers.1", "layers.2", "layers.5"], ["layers.{0..2,5}"]),
        (["b.1.w", "a.0.w", "b.0.w"], ["b.{0..1}.w", "a.0.w"]),
        ([f"h.{i}.experts.{j}.w" for i in range(2) for j in range(3)], ["h.{0..1}.experts.{0..2}.w"]),
        (["h.0.e.0", "h.1.e.0", "h.1.e.1"], ["h.{0..1}.e.0", "h.1.e.1"]),
        (["h.0", "h.0.w"], ["h.0", "h.0.w"]),
    ],
)
def test_names_fold(names: list[str], folded: list[str]) -> None:
    assert fold(names) == folded


def test_numbers_have_units() -> None:
    assert [byte_size(n) for n in (0, 1023, 1024, 3 * 2**20)] == ["0 B", "1023 B", "1 KiB", "3 MiB"]
    assert [duration(s) for s in (1.12e-5, 0.0105, 2)] == ["11.2 µs", "10.50 ms", "2.00 s"]
