"""What each namespace uses of its quota, as JSON (pure)."""

import msgspec


class ModelQuota(msgspec.Struct, rename="camel"):
    """Units of the GPUs of one model; ``exists`` says whether a node has one."""

    used: int
    limit: int
    exists: bool = True


class QuotaView(msgspec.Struct, rename="camel"):
    """A namespace; amounts are units.

    ``limit`` is None without a quota for all GPUs, ``models`` has the quotas for models.
    ``queued``: its pods wait in the queue. ``waiting_pods`` have neither a node nor a
    reserved GPU, and request ``waiting_units``. ``problem`` says why the quota cannot be read, or
    that the namespace is being deleted: nothing is placed then.
    """

    namespace: str
    queued: bool
    used: int
    limit: int | None
    models: dict[str, ModelQuota]
    waiting_pods: int
    waiting_units: int
    problem: str = ""


class QuotaList(msgspec.Struct, rename="camel"):
    """Quotas in the order of the namespaces' names.

    ``problem`` says why no namespace can be read now; only quotas that were read before are limits
    then. ``capacity`` are the units of all GPUs of the cluster, each of ``unit_mib`` MiB.
    """

    quotas: list[QuotaView]
    capacity: int = 0
    problem: str = ""
    unit_mib: int = msgspec.field(name="unitMiB", default=0)
