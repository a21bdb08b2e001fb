"""The documents are short enough to be read."""

from tests.markdown import ROOT

MOST = 38_000  # words, as `wc -w` counts them


def test_all_documents_together_have_few_words():
    words = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").split())
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert sum(words.values()) <= MOST, sorted(words.items(), key=lambda each: -each[1])
