"""The listeners in the extender's configuration."""

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec import Meta

from extender.settings.section import MAX_PORT, NotEmpty, Port, Problem, Section
from gpushare.contract import EXTENDER_PORT, FORMER_EXTENDER_PORT


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``; "localhost" is the only known name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_FILES: Final = "/etc/gpushare-tls"  # in the pod, in all shipped manifests
SERVED: Final = {"certificate": f"{_FILES}/tls.crt", "key": f"{_FILES}/tls.key"}
OWN_CERTIFICATE: Final = {
    **SERVED,
    "authority": f"{_FILES}/ca.crt",
    "allowedNames": ["gpushare-extender"],
}


class Address(Section, frozen=True):
    host: NotEmpty
    port: Port


class Certificate(Section, frozen=True):
    """Paths of the files that a listener presents; read again when they change."""

    certificate: NotEmpty
    key: NotEmpty


class Tls(Certificate, frozen=True):
    """``allowed_names`` are compared exactly with the names in a caller's certificate."""

    authority: NotEmpty
    allowed_names: tuple[str, ...]

    def problems(self) -> Iterator[Problem]:
        if not self.allowed_names or not all(self.allowed_names):
            yield "allowedNames", "write the exact names that a caller's certificate may have"


class DecidingTls(Address, frozen=True):
    tls: Annotated[
        Tls,
        Meta(
            description="allowedNames: the exact common or DNS names of callers",
            examples=[{**OWN_CERTIFICATE, "allowedNames": ["gpushare-scheduler"]}],
        ),
    ]


class ReadingListener(Address, frozen=True):
    """Callers under review send a token, so beyond loopback that requires ``tls``."""

    host: NotEmpty = "0.0.0.0"  # noqa: S104 - for other machines; the API server checks callers
    port: Port = EXTENDER_PORT + 2
    access: Annotated[
        Literal["review", "open"],
        Meta(description="review: the API server checks tokens and rights; open: everyone"),
    ] = "review"
    tls: Annotated[Certificate | None, Meta(examples=[SERVED])] = None

    def problems(self) -> Iterator[Problem]:
        if self.access == "review" and self.tls is None and not is_loopback(self.host):
            text = (
                f"tokens would cross the network to {self.host} without TLS: write a certificate "
                "and key here, or listen on 127.0.0.1, or write access: open"
            )
            yield "tls", text


class AddedToleration(Section, frozen=True):
    """As in a pod. An empty ``effect`` stands for all of them."""

    key: NotEmpty
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    def problems(self) -> Iterator[Problem]:
        if self.operator == "Exists" and self.value:
            yield "value", "operator is Exists, for any value: leave it out, or write Equal there"


GPU_TAINT: Final = AddedToleration(key="nvidia.com/gpu", effect="NoSchedule")


class Admission(Address, frozen=True):
    """The API server calls it without a certificate."""

    tls: Annotated[Certificate, Meta(examples=[SERVED])]
    scheduler_name: Annotated[
        str, Meta(pattern=r"\S", description="what new pods with GPU memory get")
    ] = "gpushare-scheduler"
    tolerations: Annotated[
        tuple[AddedToleration, ...], Meta(description="what these pods get if they lack it")
    ] = (GPU_TAINT,)


class Listen(Section, frozen=True):
    deciding: Annotated[
        Address, Meta(description="kube-scheduler's calls, without TLS: loopback only")
    ] = Address("127.0.0.1", EXTENDER_PORT)
    deciding_tls: Annotated[
        DecidingTls | None,
        Meta(
            description="for a kube-scheduler on another machine",
            examples=[{"host": "0.0.0.0", "port": EXTENDER_PORT + 3}],  # noqa: S104 - as it says
        ),
    ] = None
    reading: Annotated[
        ReadingListener | None, Meta(description="for people, Prometheus and the live page")
    ] = None
    admission: Annotated[
        Admission | None,
        Meta(
            description="the webhooks for schedulerName and gates",
            examples=[{"host": "0.0.0.0", "port": 10250}],  # noqa: S104 - for the API server
        ),
    ] = None
    former_port: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_PORT,
            description="Aliyun gpushare's, also served if deciding.port is the default; 0: off",
        ),
    ] = FORMER_EXTENDER_PORT

    @property
    def former(self) -> Address | None:
        """Return the address for kube-schedulers with the former port, or None."""
        if not self.former_port or self.deciding.port != EXTENDER_PORT:
            return None
        return Address(self.deciding.host, self.former_port)

    def problems(self) -> Iterator[Problem]:
        if not is_loopback(self.deciding.host):
            text = (
                f"{self.deciding.host} is not loopback, and clients of this listener can bind pods "
                "without authentication: write 127.0.0.1, and for a kube-scheduler on another "
                "machine add listen.decidingTls"
            )
            yield "deciding.host", text
        taken = {self.deciding.port: "listen.deciding"}
        if self.former is not None and self.former.port in taken:
            yield "formerPort", f"{self.former.port} is the port of listen.deciding"
        elif self.former is not None:
            taken[self.former.port] = "listen.formerPort"
        others = {
            "decidingTls": self.deciding_tls,
            "reading": self.reading,
            "admission": self.admission,
        }
        for place, each in others.items():
            if each is not None and each.port in taken:
                yield f"{place}.port", f"{each.port} is the port of {taken[each.port]}"
            elif each is not None:
                taken[each.port] = f"listen.{place}"
