"""Which window of the text is which sample: a pure function of (seed, absolute sample position).

There is no loader state to save, to restore in the wrong order or to count twice: position 12,345 is the same
window whoever asks, after however many resumes. Within an epoch each window comes once, in an order that a keyed
permutation (a four-round Feistel network over the next power of four, walked until it lands inside) gives in O(1)
memory. Refuses to use a random generator of any library, whose stream may change with its version.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_ROUNDS = 4


def mix(value: int) -> int:
    """splitmix64's finaliser: a 64-bit number with every bit depending on every bit of `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permute(index: int, count: int, key: int) -> int:
    """The place of `index` in the permutation of range(count) that `key` names. 0 <= index < count."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mix(mix(key + turn) ^ right) & mask)
        index = (left << half) | right
        if index < count:
            return index


def window_start(position: int, *, tokens: int, context: int, seed: int) -> int:
    """First token of the window for sample `position` (0, 1, 2 ... without end), in a text of `tokens` tokens.

    A window is `context` tokens and the one after. Each epoch shifts all windows by an offset of its own, so that
    their borders do not fall on the same tokens again. Needs tokens >= context + 1.
    """
    spare = (tokens - 1) % context
    count = (tokens - 1) // context
    epoch, index = divmod(position, count)
    key = mix(mix(seed) ^ epoch)
    offset = key % (spare + 1)
    return offset + context * permute(index, count, key)
