"""Reads when the certificates of the configuration end."""

from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from extender.settings.configuration import Configuration


def files_of(configuration: Configuration) -> dict[str, bool]:
    """Return every certificate file in the configuration, and whether it is an authority's."""
    listen, election = configuration.listen, configuration.leader_election
    mutual = [section.tls for section in (listen.deciding_tls, election) if section is not None]
    one_sided = [each.tls for each in (listen.reading, listen.admission) if each is not None]
    shown = [each.certificate for each in (*mutual, *one_sided) if each is not None]
    return dict.fromkeys(shown, False) | dict.fromkeys((each.authority for each in mutual), True)


def ends(files: dict[str, bool]) -> Iterator[tuple[str, float]]:
    """Yield path and end, in seconds since 1970, of each file that can be read.

    For an authority's file it is the last end: the file has the old and the new one at a change.
    """
    for path, is_authority in files.items():
        try:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError):
            continue  # extender/server/tls.py has logged it, and goes on with the last good one
        times = [each.not_valid_after_utc.timestamp() for each in found]
        yield path, max(times) if is_authority else times[0]
