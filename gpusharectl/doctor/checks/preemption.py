"""Check that the extender's preemption has both its setting and its rights (pure)."""

from collections.abc import Iterator
from typing import Final

from gpusharectl.doctor.checks.access import words
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts.cluster import EXTENDER, LISTS_BUDGETS, PREEMPTS, Facts, Unknown

PREEMPTION_NOT_PERMITTED = problem(
    "PreemptionNotPermitted",
    "the extender is to evict pods for more important ones, and may not, so pods and gangs with a "
    "high priority wait for room",
    "install the component preemption (preemption.enabled), or set preemption.enabled: false in "
    "the extender's configuration",
)
PREEMPTION_OFF = warning(
    "PreemptionOff",
    "the extender has the rights of the component preemption, and evicts no pod for a more "
    "important one",
    "set preemption.enabled: true in the extender's configuration (docs/install.md, Preemption), "
    "or remove the component (preemption.enabled)",
)


def _setting_and_rights_agree(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.preempts, Unknown):
        yield unchecked("the setting preemption of the extender", facts.preempts)
        return
    given = {each: facts.permissions.get(each) for each in PREEMPTS}
    missing = [each for each, is_given in given.items() if is_given is False]
    unknown = [each for each in given.values() if isinstance(each, Unknown)]
    if unknown:
        yield unchecked("the rights of the extender's preemption", unknown[0])
    elif facts.preempts and missing:
        found = f"preemption.enabled is true, and it may not {', '.join(map(words, missing))}"
        yield PREEMPTION_NOT_PERMITTED.of(EXTENDER, found)
    elif not facts.preempts and given[LISTS_BUDGETS]:
        found = f"it may {words(LISTS_BUDGETS)}, and preemption.enabled is not true"
        yield PREEMPTION_OFF.of(EXTENDER, found)


def _is_off(facts: Facts) -> str:
    is_on = facts.preempts or facts.permissions.get(LISTS_BUDGETS) is True
    return "" if is_on else "the extender evicts no pods for more important ones"


CHECKS: Final = (
    Check(
        "Preemption",
        "the extender has setting and rights of its preemption",
        _setting_and_rights_agree,
        _is_off,
    ),
)
