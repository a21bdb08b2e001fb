"""The figures of nvidia-smi are read by the names of their columns."""

import pytest

from bench.limits.smi import utilization

NEWER = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
    0       1234     C     98     45      -      -      -      -   1542      0    python3
    0       1235     C      -      -      -      -      -      -    812      0    python3
    0       1234     C     94     45      -      -      -      -   1542      0    python3
    1          -     -      -      -      -      -      -      -      -      -    -
"""
OLDER = """\
# gpu        pid  type    sm   mem   enc   dec    fb   command
# Idx          #   C/G     %     %     %     %    MB   name
    0       1234     C    50     0     0     0   812   python3
"""


@pytest.mark.parametrize(("text", "means"), [(NEWER, {1234: 96}), (OLDER, {1234: 50})])
def test_a_process_without_figures_has_no_utilization(text, means):
    assert utilization(text) == means
