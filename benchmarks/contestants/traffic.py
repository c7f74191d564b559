"""One end of a connection that carries as many bytes in both directions at once, over plain sockets.

python traffic.py ADDRESS BYTES [listen]

Prints "ready", and begins when it is told so on standard input.
"""

from __future__ import annotations

import socket
import sys
import threading

PORT = 29_477
PIECE = 2**18
TIMEOUT_S = 30.0


def trade(address: str, nbytes: int, listens: bool) -> None:
    if listens:
        with socket.create_server((address, PORT)) as server:
            server.settimeout(TIMEOUT_S)
            print("ready", flush=True)
            connection, _ = server.accept()
    else:
        connection = socket.create_connection((address, PORT), timeout=TIMEOUT_S)
        print("ready", flush=True)
    sys.stdin.readline()
    piece, place = bytes(PIECE), bytearray(PIECE)

    def send() -> None:
        for sent in range(0, nbytes, PIECE):
            connection.sendall(piece[: nbytes - sent])
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    with connection:
        connection.settimeout(TIMEOUT_S)
        sender.start()
        while connection.recv_into(place):
            pass
        sender.join()


if __name__ == "__main__":
    trade(sys.argv[1], int(sys.argv[2]), "listen" in sys.argv[3:])
