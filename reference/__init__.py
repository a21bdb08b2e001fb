"""The parts of the documents that are generated from the code."""
