"""Read namespaces from documents, as far as they limit or order pods (pure)."""

from dataclasses import dataclass

import msgspec

from gpushare.contract import ANNOTATION_QUOTA
from gpushare.quota.namespaces import Metadata, Namespace, NamespaceObject, namespace_of
from gpusharectl.manifests import kubernetes_keys
from gpusharectl.manifests.yaml_lines import Document
from gpusharectl.simulate.documents.values import check_keys, is_served, name_of, time_of


@dataclass(frozen=True, slots=True)
class NamespaceEvent:
    """The namespace from ``at`` (seconds) on."""

    at: int
    namespace: Namespace


class NamespaceDocuments:
    """The namespaces by name and time."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Namespace] = {}

    def add(self, doc: Document) -> None:
        """Add a document; SettingsError if it is invalid or says again what another one says.

        A quota that cannot be read is an error as well, unless it comes from an API server: there
        the pods of the namespace wait.
        """
        check_keys(doc, kubernetes_keys.NAMESPACE)
        at, name = time_of(doc, "at") or 0, name_of(doc)
        if (name, at) in self._found:
            raise doc.wrong(("metadata", "name"), f"namespace {name} is defined twice at {at}s")
        try:
            meta = msgspec.convert(doc.value["metadata"], Metadata)
        except msgspec.ValidationError as err:
            text = str(err).replace("`", "")
            raise doc.wrong(
                ("metadata",), f"{text}: write labels and annotations in quotes"
            ) from err
        found = self._found[name, at] = namespace_of(NamespaceObject(meta))
        if found.problem and not is_served(doc):
            raise doc.wrong(("metadata", "annotations", ANNOTATION_QUOTA), found.problem)

    def events(self) -> list[NamespaceEvent]:
        return [NamespaceEvent(at, namespace) for (_, at), namespace in self._found.items()]
