"""Which requests are let in by what their heads say of where they come from: Host, Origin, and what a proxy adds.

A page of any site can make a browser send requests to this machine. Its Origin tells or, where browsers send none, as
with an image's GET, Sec-Fetch-Site; and a name that its owner points at this machine (DNS rebinding) is found in Host.
Programs other than browsers send none of the first two.
"""

import functools
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from heed.apps.serving.http_error import DEEPL_PATHS, HTTPError
from heed.errors import HeedError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128", "::ffff:127.0.0.0/104")))
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_ROOT_PATH = re.compile(r"(?:/[A-Za-z0-9._~%-]+)*")
OWN_SITES = ("same-origin", "none")  # none: an address that somebody typed
CLOSE = {"connection": "close"}  # its body is not read
_DEFAULT_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class AccessPolicy:
    """The names under which the server is used, the origins whose pages may use it, and the proxies that it believes.

    hosts: names in lower case besides loopback's and addresses; None for any. origins: in lower case; "*" is any, and
    moz-extension://* any of a scheme.
    root_path: under which a proxy shows the server, such as /heed; a trusted proxy may say another.
    """

    hosts: frozenset[str] | None = frozenset()
    origins: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = LOOPBACK
    root_path: str = ""

    def check(self, scope: Scope) -> None:
        """HTTPError, 403, for a Host, an Origin or a page of another origin that is not let in."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host and self.hosts is not None and not self._is_ours(host):
            raise HTTPError(403, "the Host header names another server; see --allow-host", CLOSE)
        origin = headers.get("origin")
        if origin is None:
            is_ours = "*" in self.origins or headers.get("sec-fetch-site", "none") in OWN_SITES
            is_let_in = is_ours or _is_link(scope["path"], headers)
        else:
            is_let_in = self.allows(origin) or self._is_own(origin, scope)
        if not is_let_in:
            raise HTTPError(403, "pages of this origin may not use this server; see --cors", CLOSE)

    def allows(self, origin: str) -> bool:
        """Whether pages of another origin may use the server."""
        scheme = origin.lower().partition("://")[0]
        return not self.origins.isdisjoint(("*", origin.lower(), f"{scheme}://*"))

    def _is_own(self, origin: str, scope: Scope) -> bool:
        _, name = self.scheme_and_host(scope)
        return _place(origin) in (_place(f"{scheme}://{name}") for scheme in _DEFAULT_PORTS)

    def scheme_and_host(self, scope: Scope) -> tuple[str, str]:
        """The scheme and the host, with its port, that the client used, as a trusted proxy may say."""
        headers = Headers(scope=scope)
        scheme, host = scope["scheme"], headers.get("host") or ":".join(map(str, scope["server"] or ()))
        if self._is_proxy(scope):
            forwarded = {**_read_forwarded(headers.get("forwarded", "")), **_read_x_forwarded(headers)}
            scheme, host = forwarded.get("proto", scheme), forwarded.get("host", host)
        if not _HOST.fullmatch(host):
            raise HTTPError(400, "Invalid request: the Host header names no host")
        return "https" if scheme.lower() == "https" else "http", host

    def base_address(self, scope: Scope) -> str:
        """The address under which the client finds the server, without a slash at its end."""
        scheme, host = self.scheme_and_host(scope)
        prefix = self.root_path
        if self._is_proxy(scope) and (forwarded_prefix := Headers(scope=scope).get("x-forwarded-prefix")) is not None:
            # Each of several proxies takes its part off the path, the first one the first part.
            prefix = "".join(_normalize_path(part) for part in forwarded_prefix.split(","))
            if not _ROOT_PATH.fullmatch(prefix):
                raise HTTPError(400, "Invalid request: the X-Forwarded-Prefix header is not a path")
        return f"{scheme}://{host}{prefix}"

    def path_of(self, scope: Scope) -> str:
        """The path of an endpoint: without `root_path`, which a proxy may have left, or needless slashes."""
        path = re.sub("//+", "/", scope["path"])
        if self.root_path and f"{path}/".startswith(f"{self.root_path}/"):
            path = path[len(self.root_path) :]
        return path.rstrip("/") or "/"

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            raise HTTPError(400, "Invalid request: the Host header names no host")
        name = match[1].lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or name in (self.hosts or ()):
            return True
        return _address(name.strip("[]")) is not None  # a rebound name is not an address

    def _is_proxy(self, scope: Scope) -> bool:
        address = _address(scope["client"][0]) if scope.get("client") else None
        return address is not None and any(address in network for network in self.proxies)


def _is_link(path: str, headers: Headers) -> bool:
    """Whether somebody follows a link of another page, in a window of its own, to what translates nothing."""
    mode, place = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest", "document")
    return mode == "navigate" and place == "document" and not path.startswith(DEEPL_PATHS)


def network(text: str) -> Network:
    """The network, or the one address, of an option. HeedError if it is neither."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise HeedError(f"--trusted-proxy {text}: expected an address or a network, such as 10.0.0.0/24.") from None


def host_name(text: str) -> str:
    """A host's name of an option, as Host headers have it without a port. HeedError if it is not one."""
    match = _HOST.fullmatch(text)
    if match is None or match[2]:
        raise HeedError(f"--allow-host {text}: expected a name such as translate.example.org, without a port.")
    return text.lower().rstrip(".")


def root_path(text: str) -> str:
    """The path of an option, with a slash only at its beginning. HeedError if it is not one."""
    path = _normalize_path(text)
    if not _ROOT_PATH.fullmatch(path):
        raise HeedError(f"--root-path {text}: expected a path such as /heed.")
    return path


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    ip_address = _address(address)
    return ip_address is not None and any(ip_address in network for network in LOOPBACK)


@functools.lru_cache(maxsize=1024)  # the same few, in every request
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _place(origin: str) -> tuple[str, str, str] | None:
    """Scheme, host and port of an origin; None for "null" and other things."""
    try:
        parts = urlsplit(origin)
        scheme, port = parts.scheme.lower(), str(parts.port or "")
    except ValueError:
        return None
    if scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    return scheme, parts.hostname.lower().rstrip("."), port or _DEFAULT_PORTS[scheme]


def _read_forwarded(header: str) -> Mapping[str, str]:
    """The fields that the last proxy has added to Forwarded (RFC 7239), with the protocol that the first one saw."""
    elements = [
        {name.strip().lower(): value.strip().strip('"') for name, equals, value in pairs if equals}
        for pairs in ((part.partition("=") for part in element.split(";")) for element in header.split(","))
    ]
    proto = next((element["proto"] for element in elements if "proto" in element), None)
    return elements[-1] | ({} if proto is None else {"proto": proto})


def _read_x_forwarded(headers: Headers) -> Mapping[str, str]:
    values = {}
    if "x-forwarded-proto" in headers:  # of several proxies, the first one talks to the client
        values["proto"] = headers["x-forwarded-proto"].partition(",")[0].strip()
    if "x-forwarded-host" in headers:  # only the last one is known to be trusted
        values["host"] = headers["x-forwarded-host"].rpartition(",")[2].strip()
    return values


def _normalize_path(path: str) -> str:
    """With a slash at its beginning and none at its end; "" for "/"."""
    path = path.strip().strip("/")
    return f"/{path}" if path else ""
