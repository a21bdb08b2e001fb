"""The ends of certificates are those of the files as they are now."""

import datetime as dt

from extender.metrics import certificates
from extender.settings.configuration import Configuration, LeaderElection
from extender.settings.listeners import Address, Certificate, Listen, ReadingListener, Tls
from tests.fakes.certificates import certificate


def days_left(end: float) -> int:
    return round((end - dt.datetime.now(dt.UTC).timestamp()) / 86400)


def test_every_certificate_of_the_configuration_is_looked_at():
    mutual = Tls("own.crt", "own.key", "ca.crt", ("n",))
    reading = ReadingListener(port=1, tls=Certificate("reading.crt", "reading.key"))
    configuration = Configuration(
        listen=Listen(reading=reading),
        leader_election=LeaderElection(address=Address("10.0.0.1", 2), tls=mutual),
    )
    found = certificates.files_of(configuration)
    assert found == {"own.crt": False, "reading.crt": False, "ca.crt": True}
    assert certificates.files_of(Configuration()) == {}


def test_a_renewed_certificate_shows_its_new_end_and_an_unreadable_one_none(tmp_path):
    path = certificate(tmp_path, "own", days=3)
    files = {str(path): False, str(tmp_path / "none.crt"): False}
    ((named, end),) = certificates.ends(files)
    assert (named, days_left(end)) == (str(path), 3)
    certificate(tmp_path, "own", days=30)
    ((_, end),) = certificates.ends(files)
    assert days_left(end) == 30
    path.write_text("no certificate")
    assert list(certificates.ends(files)) == []


def test_of_two_authorities_in_one_file_the_later_end_counts(tmp_path):
    old, new = certificate(tmp_path, "old", days=1), certificate(tmp_path, "new", days=90)
    both = tmp_path / "ca.crt"
    both.write_bytes(old.read_bytes() + new.read_bytes())
    ((_, end),) = certificates.ends({str(both): True})
    assert days_left(end) == 90
