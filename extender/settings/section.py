"""What all sections of the extender's configuration have in common."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAX_PORT: Final = 2**16 - 1

Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]
NotEmpty = Annotated[str, Meta(pattern=r"\S")]

# A place in the section, by the names in the file, and what to write there instead.
Problem = tuple[str, str]


class Unusable(ValueError):
    """The values of a section have the right types and still cannot be used."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{place}: {text}" for place, text in problems))
        self.problems = problems


class Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    def problems(self) -> Iterator[Problem]:
        yield from ()

    def __post_init__(self) -> None:
        if found := list(self.problems()):
            raise Unusable(found)
