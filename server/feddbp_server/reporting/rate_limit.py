"""How often something may be written down: so much at once, and so much more as time passes. The rest is counted."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """Whatever others can make happen as often as they like must not fill a disk."""

    def __init__(self, at_once: int, *, per_second: float, clock: Callable[[], float]) -> None:
        self._most = float(at_once)
        self._per_second = per_second
        self._clock = clock
        self._left, self._counted_at = self._most, clock()
        self._withheld = 0

    def take(self) -> bool:
        """Whether there is any left for one more; if not, it is counted."""
        now = self._clock()
        self._left = min(self._left + (now - self._counted_at) * self._per_second, self._most)
        self._counted_at = now
        if self._left < 1:
            self._withheld += 1
            return False
        self._left -= 1
        return True

    def take_withheld(self) -> int:
        """How many there was nothing left for since this was last asked."""
        withheld, self._withheld = self._withheld, 0
        return withheld
