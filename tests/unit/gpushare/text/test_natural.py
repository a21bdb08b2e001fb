"""Names with numbers are in the order in which people count."""

from gpushare.text.natural import natural


def test_numbers_in_names_are_sorted_as_numbers():
    names = ["gpu-10", "gpu-2", "gpu-02", "gpu", "10-a", "9-a", "gpu-2-b", f"gpu-{'9' * 10_000}"]
    assert sorted(names, key=natural)[:-1] == [
        "9-a", "10-a", "gpu", "gpu-02", "gpu-2", "gpu-2-b", "gpu-10",
    ]  # fmt: skip
