"""Arrays of the stand-in for JAX."""

from typing import Self

from standin_memory import MIB

from jax import pool


class Array:
    def __init__(self, mib: int) -> None:
        pool.allocate(mib)

    def block_until_ready(self) -> Self:
        return self

    def delete(self) -> None:
        pool.free()

    def __matmul__(self, other: "Array") -> "Array":
        return other


def zeros(shape: tuple[int, int], dtype: str) -> Array:
    rows, columns = shape
    return Array(rows * columns * 4 // MIB)


ones = zeros
