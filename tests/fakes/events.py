"""An API server that accepts only Events."""

import asyncio
from typing import Any


class FakeEvents:
    """``told`` has reason, kind and name of the object, and text of each Event."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []
        self.changed = asyncio.Event()

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        about = event["involvedObject"]
        self.told.append((event["reason"], about["kind"], about["name"], event["message"]))
        self.changed.set()

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, *_ in self.told]
