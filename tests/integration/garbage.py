"""Invalid conversations: random bytes, and valid beginnings that end in the middle.

A ``Random`` decides everything, so a seed names each conversation. Some commands are valid by chance or on purpose, and
leave topics with messages in them, as those of any client.

``tcp_garbage`` and ``http_garbage`` create conversations, ``pieces`` cuts them up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from struct import pack

from nsqkit.wire.commands import MAGIC_V2

TOPICS = (b"garbage", b"refuse#ephemeral", b"a")
CHANNELS = (b"bin", b"bin#ephemeral", b"b")
VERBS = (*b"IDENTIFY AUTH SUB PUB MPUB DPUB RDY FIN REQ TOUCH NOP CLS pub GET".split(), b"")
NUMBERS = (b"0", b"1", b"-1", b"+1", b"2500", b"2501", b"1e3", b"2147483648", b"18446744073709551615")
SIZES = (0, 1, 4, 5, 100, 5_000, 60_000)
WRONG_SIZES = (-(1 << 31), -1, 0, 1 << 20, (1 << 20) + 1, 5 << 20, (1 << 31) - 1)
FIELDS = (
    *("client_id", "hostname", "user_agent", "feature_negotiation", "heartbeat_interval", "msg_timeout"),
    *("output_buffer_size", "output_buffer_timeout", "tls_v1", "snappy", "deflate", "deflate_level"),
    *("sample_rate", "topology_zone", "no such field"),
)
VALUES: tuple[object, ...] = (
    *(None, True, False, -1, 0, 1, 6, 99, 100, 1000, 60_000, 1 << 40, 1.5),
    *("", "x", [], {"a": 1}),
)
PATHS = (
    *("/ping", "/info", "/stats", "/pub", "/mpub", "/config/log_level", "/config/x", "/", "*", "//", "/%zz"),
    *("/topic/create", "/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause"),
    *("/channel/create", "/channel/delete", "/channel/empty", "/channel/pause", "/channel/unpause"),
)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "get", "\x00", "")

# The beginning of a record in which TLS is requested, and possible beginnings of snappy and deflate.
LAYERS = (b"\x16\x03\x01\x02\x00\x01\x00", b"\xff\x06\x00\x00sNaPpY", b"\xcb\x48\xcd\xc9")


# ---- over TCP ------------------------------------------------------------------------------------------------------


def tcp_garbage(random: Random) -> bytes:
    """Return everything that one client sends to the broker, from its first byte on."""
    return random.choice(TCP_KINDS)(random)


def noise(random: Random) -> bytes:
    """Return random bytes."""
    return random.randbytes(random.choice(SIZES))


def noise_after_magic(random: Random) -> bytes:
    return MAGIC_V2 + noise(random)


def commands(random: Random) -> bytes:
    """Return commands of random words, some of them valid."""
    return MAGIC_V2 + b"".join(command(random) for _ in range(random.randint(1, 20)))


def consumer(random: Random) -> bytes:
    """Return the commands of a consumer, followed by garbage."""
    start = b"SUB %b %b\nRDY %d\n" % (
        random.choice(TOPICS),
        random.choice(CHANNELS),
        random.choice((1, 2500)),
    )
    publish = b"PUB %b\n" % random.choice(TOPICS) + sized(b"x" * random.choice((1, 5_000)))
    return MAGIC_V2 + start + publish * random.randint(0, 5) + command(random) + noise(random)


def upgraded(random: Random) -> bytes:
    """Return the bytes of a client that is granted a layer and does not use it."""
    layer = random.choice(("tls_v1", "snappy", "deflate"))
    document = json.dumps({"feature_negotiation": True, layer: True}).encode()
    return MAGIC_V2 + b"IDENTIFY\n" + sized(document) + random.choice((b"", *LAYERS)) + noise(random)


def half(random: Random) -> bytes:
    """Return a conversation that is cut off."""
    whole = random.choice((commands, consumer, upgraded))(random)
    return whole[: random.randrange(len(whole))]


def half_batch(random: Random) -> bytes:
    """Return a large batch without its end."""
    count = random.randint(1, 5)
    batch = pack(">ii", 5 << 20, count) + pack(">i", 1 << 20)
    return MAGIC_V2 + b"MPUB %b\n" % random.choice(TOPICS) + batch + bytes(random.choice((0, 60_000, 500_000)))


def flipped(random: Random) -> bytes:
    """Return a conversation with some bits flipped."""
    data = bytearray(random.choice((commands, consumer, upgraded))(random))
    for _ in range(random.randint(1, 5)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


TCP_KINDS: tuple[Callable[[Random], bytes], ...] = (
    *(noise, noise_after_magic, commands, commands, consumer, consumer, upgraded, half, half_batch, flipped),
)


def command(random: Random) -> bytes:
    """Return one command of random words, with a body-like part where it needs one."""
    verb = random.choice(VERBS)
    words = [verb]
    if verb in (b"SUB", b"PUB", b"MPUB", b"DPUB"):
        words.append(random.choice((*TOPICS, *TOPICS, b"", b"x" * 65, b"a$b", b"\xff")))
    words += [word(random) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    line = b" ".join(words) + random.choice((b"\n", b"\n", b"\n", b"\r\n", b""))
    return line + body(random, verb) if verb in (b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB") else line


def word(random: Random) -> bytes:
    return random.choice(
        (
            random.choice(CHANNELS),
            random.choice(NUMBERS),
            random.randbytes(16).replace(b"\n", b" "),
            random.randbytes(random.randint(0, 40)).replace(b"\n", b""),
        )
    )


def body(random: Random, verb: bytes) -> bytes:
    if random.randrange(4) == 0:
        return pack(">i", random.choice(WRONG_SIZES)) + noise(random)
    if verb == b"IDENTIFY":
        fields = {random.choice(FIELDS): random.choice(VALUES) for _ in range(random.randint(0, 8))}
        return sized(json.dumps(fields).encode())
    if verb == b"MPUB":
        bodies = [bytes(random.choice((1, 1, 100, 5_000))) for _ in range(random.randint(0, 10))]
        count = random.choice((len(bodies), len(bodies), len(bodies) + 1, -1, 1 << 30))
        return sized(pack(">i", count) + b"".join(map(sized, bodies)))
    return sized(noise(random))


def sized(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


# ---- over HTTP -----------------------------------------------------------------------------------------------------


def http_garbage(random: Random) -> bytes:
    """Return everything that one client sends to the HTTP routes."""
    return random.choice((noise, requests, requests, requests, half_request))(random)


def requests(random: Random) -> bytes:
    return b"".join(request(random) for _ in range(random.randint(1, 5)))


def half_request(random: Random) -> bytes:
    whole = requests(random)
    return whole[: random.randrange(len(whole))]


def request(random: Random) -> bytes:
    """Return one request of random words, some of them valid."""
    topic = random.choice((*TOPICS, *TOPICS, b"", b"%00", b"a%24b")).decode().replace("#", "%23")
    channel = random.choice(CHANNELS).decode().replace("#", "%23")
    others = ("defer=-1", "defer=1000", "binary=true", "format=json", "a;b", "%", "=&=", "x" * 5_000)
    query = "&".join(random.sample((f"topic={topic}", f"channel={channel}", *others), random.randint(0, 4)))
    target = f"{random.choice(PATHS)}{random.choice(('?', '?', ''))}{query}"
    content = noise(random)
    framing = random.choice(
        (
            f"Content-Length: {len(content)}",
            f"Content-Length: {len(content)}",
            f"Content-Length: {random.choice(WRONG_SIZES)}",
            "Content-Length: 1\r\nContent-Length: 2",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue\r\nContent-Length: 5",
            "Connection: upgrade\r\nUpgrade: x",
            "no colon",
        )
    )
    version = random.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""))
    return f"{random.choice(METHODS)} {target} {version}\r\nHost: h\r\n{framing}\r\n\r\n".encode() + content


# ---- on the way ----------------------------------------------------------------------------------------------------


def pieces(data: bytes, random: Random) -> Iterator[bytes]:
    """Yield ``data`` as a network may deliver it: cut up anywhere."""
    while data:
        size = random.choice((1, 7, 1_000, 100_000, len(data)))
        yield data[:size]
        data = data[size:]
