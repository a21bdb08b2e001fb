"""The configuration in the instructions has the defaults of the extender."""

from msgspec.structs import replace

from extender.settings.configuration import Configuration, LeaderElection, ReadingListener
from extender.settings.file import parse
from tests.markdown import ROOT, blocks


def test_the_configuration_in_the_instructions_has_the_defaults():
    (text,) = [
        each.text
        for each in blocks(ROOT / "docs/install.md")
        if each.language == "yaml" and each.text.startswith("memoryUnit:")
    ]
    found = parse(text.encode())
    election, reading = found.leader_election, found.listen.reading
    assert election == LeaderElection(address=election.address, tls=election.tls)
    assert reading == ReadingListener(tls=reading.tls)
    listen = replace(found.listen, deciding_tls=None, reading=None)
    assert replace(found, listen=listen, leader_election=None) == Configuration()
