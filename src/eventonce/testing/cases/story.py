"""How a failing program is told: as the calls one would type, each with its answer beneath."""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.testing.cases.samples import DAY, EPOCH, EVERY_BYTE
from eventonce.types import Claim

FAR: Final = 1_000 * DAY
"""From EPOCH: an integer beyond it is no instant of a program, and is not written as one."""

SPELLED: Final = {EVERY_BYTE: "EVERY_BYTE", EVERY_BYTE * 256: "EVERY_BYTE * 256"}


class Story:
    """Lines kept as values, and put into words only when somebody has to read them."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        """Of all keys in the story; without it they have their short names."""
        self.lines: list[tuple[str, tuple[object, ...]]] = []
        self.names: dict[int, str] = {}

    def tell(self, line: str, *values: object) -> None:
        """One line, the values in the place of its braces."""
        self.lines.append((line, values))

    def __str__(self) -> str:
        self.names.clear()
        return "\n".join(self._told(line, values) for line, values in self.lines)

    def _told(self, line: str, values: tuple[object, ...]) -> str:
        new = [
            f"{self._name(claim)} = {self._struct(claim)}\n"
            for claims in values
            if isinstance(claims, list)
            for claim in claims
            if isinstance(claim, Claim) and claim.nonce not in self.names
        ]
        return "".join(new) + line.format(*map(self._code, values))

    def _name(self, claim: Claim) -> str:
        return self.names.setdefault(claim.nonce, f"c{len(self.names) + 1}")

    def _struct(self, value: msgspec.Struct) -> str:
        """Without what is default."""
        fields = [
            f"{field.name}={self._code(getattr(value, field.name))}"
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(fields)})"

    def _code(self, value: object) -> str:
        match value:
            case Claim():
                return self._name(value)
            case msgspec.Struct():
                return self._struct(value)
            case list():
                return f"[{', '.join(map(self._code, value))}]"
            case bytes():
                return SPELLED.get(value) or repr(value.removeprefix(self.prefix))
            case int() if not isinstance(value, bool):
                off = value - EPOCH
                return f"{value:_}" if abs(off) > FAR else f"EPOCH {'-+'[off >= 0]} {abs(off):_}"
            case _:
                return repr(value)
