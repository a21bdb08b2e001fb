"""Requests one of the extender's endpoints, for probes that run inside its pod.

    python -m extender.probe /readyz

Exit code 0 for a 200, 1 for anything else.
"""

import http.client
import sys
from typing import Final

from gpushare.contract import EXTENDER_PORT

SECONDS: Final = 3.0


def main() -> int:
    connection = http.client.HTTPConnection("127.0.0.1", EXTENDER_PORT, timeout=SECONDS)
    try:
        connection.request("GET", sys.argv[1])
        return int(connection.getresponse().status != http.HTTPStatus.OK)
    except (OSError, http.client.HTTPException) as err:
        sys.stderr.write(f"{err}\n")
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
