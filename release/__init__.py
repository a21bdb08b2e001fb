"""The files of a release in ``dist/``: image, chart, packages, checksums (``make release``)."""
