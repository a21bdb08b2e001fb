"""What NVIDIA's XID catalog says about an XID by its number alone (pure).

From docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog", column
"Immediate Action", as of November 2026. The driver's own recovery action has precedence where there
is one: the catalog applies to drivers that report none.
"""

from typing import Final

FELL_OFF_THE_BUS: Final = 79
# The GPU stays healthy: these are an application's own fault (13, 31, 43, 45, 68, 94) or report
# what the GPU has repaired itself (63: memory remapped or retired, 92: many corrected errors). For
# 109, a context switch timeout, the catalog advises a reset, but programs cause it; NVIDIA's own
# device plugin ignores it, as it does 13, 31, 43, 45 and 68 (k8s-device-plugin,
# internal/rm/health.go).
HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 63, 68, 92, 94, 109})
# The action is a reset of the GPU, or for 79 and 151 of the machine. 48 and 74 have workflows of
# their own, which end with a reset.
RESET_XIDS: Final = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "memory could not be remapped",
    74: "NVLink error",
    FELL_OFF_THE_BUS: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    151: "key rotation error",
    155: "NVLink error",
    156: "resource retired",
    158: "fatal timeout",
}
