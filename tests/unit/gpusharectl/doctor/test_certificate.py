"""The end of a certificate is read as the library that made it says."""

import datetime as dt
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from extender.certificates import make
from gpushare.errors import RecordError
from gpusharectl.doctor import certificate


@pytest.mark.parametrize("days", [1, 3650, 10_000, 40_000])
def test_the_end_is_that_of_the_certificate(days):
    files = make(("gpushare-extender",), now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), days=days)
    pem = files["gpushare-extender.crt"]
    made = x509.load_pem_x509_certificate(pem)
    assert certificate.ends(certificate.first_of(pem)) == made.not_valid_after_utc
    assert certificate.ends(made.public_bytes(Encoding.DER)) == made.not_valid_after_utc


@given(st.binary(max_size=60), st.integers(0, 300))
def test_bytes_that_are_none_are_refused_and_nothing_else_happens(noise, place):
    der = certificate.first_of(make(("a",), now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))["a.crt"])
    broken = der[:place] + noise + der[place + len(noise) :]
    for data in (noise, der[:place], broken):
        with suppress(RecordError):
            assert certificate.ends(data).tzinfo is dt.UTC


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----"])
def test_a_file_without_a_certificate_is_refused(pem):
    with pytest.raises(RecordError):
        certificate.first_of(pem)
