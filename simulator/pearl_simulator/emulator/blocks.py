"""KV blocks of one emulated engine: a pool of fixed size with a prefix cache in what is free.

A block that nobody holds keeps its contents until it is given out again, the longest unused first; of one sequence the
tail goes first. Block 0 exists and is never given out, as in vLLM.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockPool:
    """Blocks 1 … `count` − 1, of `size` tokens each."""

    def __init__(self, count: int, size: int, *, caching: bool = True) -> None:
        if count < 2 or size < 1:  # noqa: PLR2004 - block 0 is never given out
            raise ValueError(f"a KV cache of {count} blocks of {size} tokens holds nothing: give it more memory")
        self.size = size
        self.count = count
        self._caching = caching
        self._holders = [0] * count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count))
        self._by_content: dict[int, int] = {}
        self._content: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be given out."""
        return len(self._free)

    @property
    def used_share(self) -> float:
        """Share of the blocks that somebody holds, 0..1."""
        return 1.0 - len(self._free) / (self.count - 1)

    def match(self, contents: Sequence[int]) -> list[int]:
        """The cached blocks of the longest known prefix of `contents`."""
        found = []
        for content in contents:
            block = self._by_content.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep cached blocks for one more holder."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def take(self, number: int) -> list[int]:
        """Give out empty blocks; what was cached in them is forgotten.

        Raises:
            IndexError: not so many are free; ask `free` before.
        """
        if number > len(self._free):
            raise IndexError(f"{number} KV blocks wanted, {len(self._free)} free")
        given = []
        for _ in range(number):
            block, _nothing = self._free.popitem(last=False)
            content = self._content.pop(block, None)
            if content is not None:
                del self._by_content[content]
            self._holders[block] = 1
            given.append(block)
        return given

    def remember(self, block: int, content: int) -> None:
        """This block now holds known content; of several with equal content the first one is found."""
        if self._caching and content not in self._by_content and block not in self._content:
            self._by_content[content] = block
            self._content[block] = content

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each; the last of a sequence will be given out first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None

    def forget(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while anybody holds a block."""
        if len(self._free) < self.count - 1:
            return False
        self._by_content.clear()
        self._content.clear()
        return True
