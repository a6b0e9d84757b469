"""A small SMTP server on this machine (RFC 5321), with AUTH PLAIN and STARTTLS."""

import base64
import email
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from io import BytesIO
from pathlib import Path


@dataclass
class Mailbox:
    """The server's settings, and the mails that it has accepted."""

    port: int = 0
    mails: list[Message] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    """Whether each mail came through TLS."""
    password: str = ""
    """Password that a login needs; "" for a server without logins."""
    refusals: list[str] = field(default_factory=list)
    """Answers to the next recipients, in place of 250."""
    tls: ssl.SSLContext | None = None


class _Session(socketserver.StreamRequestHandler):
    """One connection."""

    @property
    def box(self) -> Mailbox:
        return self.server.box  # type: ignore[attr-defined]

    def handle(self) -> None:
        self.is_encrypted = False
        self.say("220 mail.test ESMTP")
        while line := self.rfile.readline():
            verb, _, rest = line.decode().strip().partition(" ")
            if verb.upper() == "QUIT":
                self.say("221 bye")
                return
            self.on_command(verb.upper(), rest)

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def say(self, *lines: str) -> None:
        for line in lines:
            self.wfile.write(f"{line}\r\n".encode())

    def on_command(self, verb: str, rest: str) -> None:
        box = self.box
        match verb:
            case "EHLO":
                tls = ["250-STARTTLS"] if box.tls and not self.is_encrypted else []
                auth = ["250-AUTH PLAIN"] if box.password else []
                self.say("250-mail.test", *tls, *auth, "250 SIZE 1000000")
            case "STARTTLS" if box.tls:
                self.say("220 go ahead")
                self.encrypt(box.tls)
            case "AUTH":
                self.on_login(rest.removeprefix("PLAIN "))
            case "RCPT" if box.refusals:
                self.say(box.refusals.pop(0))
            case "RCPT":
                box.recipients.append(rest)
                self.say("250 ok")
            case "DATA":
                self.say("354 end with a dot")
                self.on_data()
            case _:
                self.say("250 ok")

    def encrypt(self, tls: ssl.SSLContext) -> None:
        """Ends the connection in silence when the client does not trust the certificate."""
        try:
            self.connection = tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.rfile = BytesIO()
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.is_encrypted = True

    def on_login(self, secret: str) -> None:
        _, user, password = base64.b64decode(secret).decode().split("\0")
        self.box.logins.append((user, password))
        is_right = password == self.box.password
        self.say("235 welcome" if is_right else f"535 wrong password: {password}")

    def on_data(self) -> None:
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        self.box.mails.append(email.message_from_bytes(b"".join(lines)))
        self.box.encrypted.append(self.is_encrypted)
        self.say("250 accepted")


@contextmanager
def smtp_server(certificate: Path | None = None) -> Iterator[Mailbox]:
    """Serves until the end of the block. `certificate`: a PEM file with key, for STARTTLS."""
    box = Mailbox()
    if certificate:
        box.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        box.tls.load_cert_chain(certificate)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session) as server:
        server.daemon_threads = True
        server.box = box  # type: ignore[attr-defined]
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield box
        finally:
            server.shutdown()
            thread.join()
