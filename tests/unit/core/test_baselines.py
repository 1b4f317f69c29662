"""What a device did before: which results are compared, and which may teach."""

from __future__ import annotations

import pytest

from watchdog.core.baselines import KEPT, Results, baseline, key_of, learned

KEY = key_of(device="GPU-1", driver="560.35.03", dtype="bf16", size=8192)


def taught(*tflops: float, fraction: float = 0.5) -> Results:
    results: Results = {}
    for each in tflops:
        results = learned(results, KEY, each, fraction=fraction)
    return results


def test_nothing_is_known_before_the_first_result() -> None:
    assert baseline({}, KEY) == (None, 0)
    assert baseline({KEY: ()}, KEY) == (None, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"device": "GPU-2"},
        {"driver": "570.86.10"},
        {"dtype": "fp16"},
        {"size": 4096},
    ],
)
def test_only_the_same_device_driver_type_and_size_are_compared(other: dict[str, object]) -> None:
    given: dict[str, object] = {"device": "GPU-1", "driver": "560.35.03", "dtype": "bf16", "size": 8192}
    assert key_of(**(given | other)) != KEY  # type: ignore[arg-type]
    assert baseline(taught(25.0), key_of(**(given | other))) == (None, 0)  # type: ignore[arg-type]


def test_the_baseline_is_the_median() -> None:
    assert baseline(taught(20.0, 26.0, 25.0), KEY) == (25.0, 3)


def test_a_result_far_below_the_baseline_teaches_nothing() -> None:
    before = taught(25.0, 25.0, 25.0)
    assert learned(before, KEY, 12.4, fraction=0.5) is before
    assert baseline(learned(before, KEY, 12.5, fraction=0.5), KEY) == (25.0, 4)


def test_a_card_that_declines_slowly_is_still_compared_with_the_last_ones_only() -> None:
    results = taught(*(100.0,) * KEPT, *(60.0,) * KEPT)
    assert baseline(results, KEY) == (60.0, KEPT)


def test_other_keys_are_kept_and_nothing_is_changed_in_place() -> None:
    before: Results = {"other": (1.0,)}
    assert learned(before, KEY, 25.0, fraction=0.5) == {"other": (1.0,), KEY: (25.0,)}
    assert before == {"other": (1.0,)}
