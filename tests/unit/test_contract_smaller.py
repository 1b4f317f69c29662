"""The contract's arithmetic of a smaller batch: the tokens of a step never change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog import contract
from watchdog.contract import ContractError

HALVINGS = st.integers(0, contract.BATCH_HALVINGS_MOST)


@given(micro=st.integers(1, 2**20), accumulation=st.integers(1, 2**12), halvings=HALVINGS)
def test_the_samples_of_a_step_never_change(micro: int, accumulation: int, halvings: int) -> None:
    try:
        small, steps = contract.shrunk_batch(micro, accumulation, halvings)
    except ContractError:
        assert any(micro % 2**k == 0 and micro // 2**k % 2 == 1 and micro // 2**k > 1 for k in range(halvings))
        return
    assert small * steps == micro * accumulation
    assert 1 <= small <= micro
    assert small == max(1, micro >> halvings)


@given(power=st.integers(0, 20), accumulation=st.integers(1, 64), halvings=HALVINGS)
def test_a_power_of_two_can_always_be_halved_and_stops_at_one(power: int, accumulation: int, halvings: int) -> None:
    small, steps = contract.shrunk_batch(2**power, accumulation, halvings)
    done = min(power, halvings)
    assert (small, steps) == (2 ** (power - done), accumulation * 2**done)


def test_none_is_as_it_was() -> None:
    assert contract.shrunk_batch(7, 3, 0) == (7, 3)


def test_an_odd_one_is_refused_with_what_to_do() -> None:
    with pytest.raises(ContractError, match=r"12 cannot be halved 3 times: 3 is odd; choose one that two divides"):
        contract.shrunk_batch(12, 1, 3)
    assert contract.shrunk_batch(12, 1, 2) == (3, 4)


@pytest.mark.parametrize("values", [(0, 1, 0), (1, 0, 0), (4, 1, -1)])
def test_what_is_no_batch_is_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(ContractError, match="is none"):
        contract.shrunk_batch(*values)


@given(HALVINGS)
def test_a_run_knows_how_often(halvings: int) -> None:
    assert (
        contract.join({contract.ENV_RUN_ID: "1-a", contract.ENV_BATCH_HALVINGS: str(halvings)}).batch_halvings
        == halvings
    )


@pytest.mark.parametrize("environment", [{}, {contract.ENV_RUN_ID: "1-a"}, {contract.ENV_BATCH_HALVINGS: "2"}])
def test_absent_is_none_and_without_a_supervisor_nobody_asks(environment: dict[str, str]) -> None:
    assert contract.join(environment).batch_halvings == 0


@pytest.mark.parametrize("text", ["-1", "17", "1.0", "two", " 1", "٣", "9" * 5000])
def test_another_word_is_one_clear_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"BATCH_HALVINGS is .*, not a whole number from 0 to 16") as error:
        contract.join({contract.ENV_RUN_ID: "1-a", contract.ENV_BATCH_HALVINGS: text})
    assert len(str(error.value)) < 150


# --- what docs/job-contract.md says of a trainer that counts the steps of an epoch --------------------------
def steps_of_an_epoch(samples: int, micro: int, accumulation: int, *, drop_last: bool, up: bool) -> int:
    """As the Hugging Face Trainer counts them; `up`: the releases that count a last, smaller step as well."""
    batches = samples // micro if drop_last else -(-samples // micro)
    return max(1, -(-batches // accumulation) if up else batches // accumulation)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_an_epoch_has_as_many_steps_at_each_size_where_the_micro_batch_divides_it(drop_last: bool, up: bool) -> None:
    differ = set()
    for samples in range(1500, 1700):
        counted = {
            steps_of_an_epoch(samples, *contract.shrunk_batch(16, 3, halvings), drop_last=drop_last, up=up)
            for halvings in range(5)
        }
        assert min(counted) >= samples // 48, "so the first epoch is never taken for the second"
        if len(counted) > 1:
            differ.add(samples)
    assert differ.isdisjoint(range(1504, 1700, 16))
    assert bool(differ) == (drop_last == up)
    assert (1521 in differ) == (not drop_last and not up)
